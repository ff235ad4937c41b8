// The loop of embedding.hpp: a strip of columns at a time, whose sum stays in registers while the list is walked.
#include "cpu/isa/embedding.hpp"

#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int strip = 4;  // vectors

void sum_rows(float* out, std::int64_t width, const EmbeddingUses& uses, bool accumulate) {
  std::int64_t column = 0;
  for (; column + strip * lanes <= width; column += strip * lanes) {
    vfloat sum[strip];
    for (int i = 0; i < strip; ++i) sum[i] = accumulate ? load(out + column + i * lanes) : vfloat{};
    for (std::int64_t n = uses.first; n >= 0; n = uses.next[n])
      for (int i = 0; i < strip; ++i) sum[i] += load(uses.dy + n * uses.stride + column + i * lanes);
    for (int i = 0; i < strip; ++i) store(out + column + i * lanes, sum[i]);
  }
  for (; column < width; ++column) {
    float sum = accumulate ? out[column] : 0;
    for (std::int64_t n = uses.first; n >= 0; n = uses.next[n]) sum += uses.dy[n * uses.stride + column];
    out[column] = sum;
  }
}

}  // namespace

extern const EmbeddingKernels embedding_kernels{.sum_rows = sum_rows};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
