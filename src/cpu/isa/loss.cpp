// The loops of loss.hpp. A row of a usual vocabulary fits the first-level cache, so that only the first of the passes over it comes
// from further away.
#include "cpu/isa/loss.hpp"

#include "core/mutant.hpp"
#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int strip = 4;  // vectors with sums of their own, to hide the latency of the additions

LogitStatistics exponentials(float* z, std::int64_t n) {
  vfloat tops[strip], sums[strip] = {};
  for (auto& top : tops) top = splat(-__builtin_inff());
  std::int64_t i = 0;
  for (; i + strip * lanes <= n; i += strip * lanes)
    for (int k = 0; k < strip; ++k) {
      const vfloat value = load(z + i + k * lanes);
      tops[k] = vmax(value, tops[k]);
      sums[k] += value;
    }
  for (; i + lanes <= n; i += lanes) {
    const vfloat value = load(z + i);
    tops[0] = vmax(value, tops[0]);
    sums[0] += value;
  }
  if (i < n) {
    const int part = static_cast<int>(n - i);
    tops[1] = vmax(load_part(z + i, part, -__builtin_inff()), tops[1]);
    sums[1] += load_part(z + i, part);
  }
  LogitStatistics s;
  s.top = max_lanes(vmax(vmax(tops[0], tops[1]), vmax(tops[2], tops[3])));
  s.sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const vfloat top = splat(s.top);
  vfloat totals[strip] = {};
  for (i = 0; i + strip * lanes <= n; i += strip * lanes)
    for (int k = 0; k < strip; ++k) {
      const vfloat value = vexp(load(z + i + k * lanes) - top);
      store(z + i + k * lanes, value);
      totals[k] += value;
    }
  for (; i + lanes <= n; i += lanes) {
    const vfloat value = vexp(load(z + i) - top);
    store(z + i, value);
    totals[0] += value;
  }
  if (i < n) {
    const int part = static_cast<int>(n - i);
    const vfloat value = vexp(load_part(z + i, part, -__builtin_inff()) - top);
    store_part(z + i, value, part);
    totals[1] += value;
  }
  s.sum_exponentials = sum_lanes((totals[0] + totals[1]) + (totals[2] + totals[3]));
  return s;
}

/// Rows [first, first + rows) of a chunk; the sums are written by the first of them and added to by the others.
template <int rows>
void gradient_rows(const LossChunk& c, int first) {
  float* const values = c.values + first * c.stride;
  const float* const scales = c.scales + first;
  std::int64_t i = 0;
  for (; i + lanes <= c.n; i += lanes) {
    vfloat sum = first == 0 || c.column_sums == nullptr ? vfloat{} : load(c.column_sums + i);
    for (int r = 0; r < rows; ++r) {
      const vfloat value = load(values + r * c.stride + i) * scales[r] - dropped("loss.no_smoothing_in_gradient", c.shift);
      store(values + r * c.stride + i, value);
      sum += flipped("loss.column_sums_sign", value);
    }
    if (c.column_sums != nullptr) store(c.column_sums + i, sum);
  }
  if (i == c.n) return;
  const int part = static_cast<int>(c.n - i);
  vfloat sum = first == 0 || c.column_sums == nullptr ? vfloat{} : load_part(c.column_sums + i, part);
  for (int r = 0; r < rows; ++r) {
    const vfloat value = load_part(values + r * c.stride + i, part) * scales[r] - c.shift;
    store_part(values + r * c.stride + i, value, part);
    sum += value;
  }
  if (c.column_sums != nullptr) store_part(c.column_sums + i, sum, part);
}

void gradients(const LossChunk& c) {
  if (c.rows == loss_chunk) return gradient_rows<loss_chunk>(c, 0);
  for (int r = 0; r < c.rows; ++r) gradient_rows<1>(c, r);
}

void sum_rows(float* out, const float* values, std::int64_t stride, std::int64_t rows, std::int64_t n, bool accumulate) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    vfloat sum = accumulate ? load(out + i) : vfloat{};
    for (std::int64_t r = 0; r < rows; ++r) sum += flipped("loss.bias_gradient_sign", load(values + r * stride + i));
    store(out + i, sum);
  }
  if (i == n) return;
  const int part = static_cast<int>(n - i);
  vfloat sum = accumulate ? load_part(out + i, part) : vfloat{};
  for (std::int64_t r = 0; r < rows; ++r) sum += load_part(values + r * stride + i, part);
  store_part(out + i, sum, part);
}

}  // namespace

extern const LossKernels loss_kernels{.exponentials = exponentials, .gradients = gradients, .sum_rows = sum_rows};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
