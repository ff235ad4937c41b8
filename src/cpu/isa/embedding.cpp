// The loop of embedding.hpp: a strip of columns at a time, whose sum stays in registers while the list is walked.
#include "cpu/isa/embedding.hpp"

#include "core/mutant.hpp"
#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int strip = 4;  // vectors

/// `vectors` of them from a column on.
template <int vectors, class T, class Out>
void sum_columns(Out* out, std::int64_t column, const EmbeddingUses<T>& uses, bool accumulate) {
  vfloat sum[vectors];
  for (int i = 0; i < vectors; ++i)
    sum[i] = accumulate && !mutant("embedding.not_accumulated") ? load(out + column + i * lanes) : vfloat{};
  for (std::int64_t n = uses.first; n >= 0; n = uses.next[n])
    for (int i = 0; i < vectors; ++i)
      sum[i] += flipped("embedding.whole_vectors_sign", load(uses.dy + n * uses.stride + column + i * lanes));
  for (int i = 0; i < vectors; ++i) store(out + column + i * lanes, sum[i]);
}

template <class T, class Out>
void sum_rows(Out* out, std::int64_t width, const EmbeddingUses<T>& uses, bool accumulate) {
  std::int64_t column = 0;
  for (; column + strip * lanes <= width; column += strip * lanes) sum_columns<strip>(out, column, uses, accumulate);
  for (; column + lanes <= width; column += lanes) sum_columns<1>(out, column, uses, accumulate);
  if (column == width) return;
  const int part = static_cast<int>(width - column);
  vfloat sum = accumulate ? dropped("embedding.tail_not_accumulated", load_part(out + column, part)) : vfloat{};
  for (std::int64_t n = uses.first; n >= 0; n = uses.next[n]) sum += load_part(uses.dy + n * uses.stride + column, part);
  store_part(out + column, sum, part);
}

}  // namespace

extern const EmbeddingKernels embedding_kernels{.f32 = sum_rows<float, float>,
                                                .f16 = sum_rows<Half, Half>,
                                                .f16_to_f32 = sum_rows<Half, float>,
                                                .bf16 = sum_rows<BFloat16, BFloat16>,
                                                .bf16_to_f32 = sum_rows<BFloat16, float>};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
