// The LSTM cell, forward and backward, for one instruction set.
#include "cpu/isa/lstm_cell.hpp"

#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr std::int64_t block = lstm_block;

/// Where the first gate of a unit stands.
inline std::int64_t gates_of(std::int64_t unit) { return unit / block * (4 * block) + unit % block; }

/// Units past the end are zero; a row that is not given is zero.
inline vfloat load_units(const float* row, std::int64_t unit, std::int64_t hidden) {
  if (row == nullptr) return splat(0.0F);
  if (unit + lanes <= hidden) return load(row + unit);
  return load_part(row + unit, hidden > unit ? static_cast<int>(hidden - unit) : 0);
}

inline void store_units(float* row, std::int64_t unit, std::int64_t hidden, vfloat value) {
  if (unit + lanes <= hidden)
    store(row + unit, value);
  else
    store_part(row + unit, value, hidden > unit ? static_cast<int>(hidden - unit) : 0);
}

/// e^x for x bounded to [-40, 40], where products of two results stay finite: no care for overflow, a third of vexp's work.
/// e^-40 is 4e-18: nothing beside the 1 that it is added to, and as a sigmoid's value it is as good as zero. NaN stays NaN.
inline vfloat bounded_exp(vfloat x) {
  const vfloat limit = splat(40.0F);
  x = limit < x ? limit : x;
  x = -limit > x ? -limit : x;
  const vfloat magic = splat(12582912.0F);  // 1.5 · 2^23: adding it rounds to an integer in the low bits
  const vfloat shifted = x * 1.44269504F + magic;
  const vfloat n = shifted - magic;
  vfloat r = x - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  vfloat p = splat(1.9875691500e-4F);  // Cephes' expf
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(p) + (reinterpret_cast<vint>(shifted) << 23));
}

inline vfloat magnitude(vfloat x) { return reinterpret_cast<vfloat>(reinterpret_cast<vint>(x) & 0x7fffffff); }
inline vfloat with_sign_of(vfloat value, vfloat sign) {
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(value) | (reinterpret_cast<vint>(sign) & ~0x7fffffff));
}

/// tanh x from its value for large |x|, (1 - e) / (1 + e) with e = e^-2|x|, which loses digits near 0: an odd polynomial there.
inline vfloat joined_tanh(vfloat x, vfloat far) {
  const vfloat z = x * x;
  vfloat p = splat(-5.70498872745e-3F);  // Cephes' tanhf
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  return magnitude(x) < 0.625F ? p * z * x + x : with_sign_of(far, x);
}

inline vfloat bounded_tanh(vfloat x) {
  const vfloat e = bounded_exp(-2.0F * magnitude(x));
  return joined_tanh(x, (1.0F - e) / (1.0F + e));
}

/// Two passes, so that each has a short chain of dependent operations of which many units are in flight at once. Two quotients are
/// made from one division: 1/a = b/(ab).
void forward(const LstmForwardRow& row) {
  const std::int64_t begin = row.begin * block, end = row.end * block;
  for (std::int64_t unit = begin; unit < end; unit += lanes) {
    const std::int64_t at = gates_of(unit);
    float* gates = row.gates + at;
    const float* bias = row.bias + at;
    const vfloat i_denominator = 1.0F + bounded_exp(-(load(gates) + load(bias)));
    const vfloat f_denominator = 1.0F + bounded_exp(-(load(gates + block) + load(bias + block)));
    const vfloat i_f = 1.0F / (i_denominator * f_denominator);
    const vfloat i = i_f * f_denominator, f = i_f * i_denominator;
    const vfloat g_sum = load(gates + 2 * block) + load(bias + 2 * block);
    const vfloat g_exp = bounded_exp(-2.0F * magnitude(g_sum));
    const vfloat o_denominator = 1.0F + bounded_exp(-(load(gates + 3 * block) + load(bias + 3 * block)));
    const vfloat o_g = 1.0F / (o_denominator * (1.0F + g_exp));
    const vfloat o = o_g * (1.0F + g_exp), g = joined_tanh(g_sum, o_g * o_denominator * (1.0F - g_exp));
    const vfloat c = f * load(row.c + unit) + i * g;
    store(row.c + unit, c);
    store(gates + 3 * block, o);
    if (row.cell == nullptr) continue;
    store(row.cell + unit, c);
    store(gates, i), store(gates + block, f), store(gates + 2 * block, g);
  }
  for (std::int64_t unit = begin; unit < end; unit += lanes) {
    const vfloat h = load(row.gates + gates_of(unit) + 3 * block) * bounded_tanh(load(row.c + unit));
    store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
  }
}

void backward(const LstmBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit);
    const float* gates = row.gates + at;
    const vfloat i = load(gates), f = load(gates + block), g = load(gates + 2 * block), o = load(gates + 3 * block);
    const vfloat squashed = bounded_tanh(load(row.cell + unit));
    const vfloat dh = load_units(row.dh, unit, row.hidden) + load_units(row.dy, unit, row.hidden);
    const vfloat dc = load(row.dc + unit) + dh * o * (1.0F - squashed * squashed);
    float* dz = row.dz + at;
    store(dz, dc * g * i * (1.0F - i));
    store(dz + block, dc * load_units(row.before, unit, row.hidden) * f * (1.0F - f));
    store(dz + 2 * block, dc * i * (1.0F - g * g));
    store(dz + 3 * block, dh * squashed * o * (1.0F - o));
    store(row.dc + unit, dc * f);
  }
}

/// Partial sums of 64 rows keep the rounding error of long sums down.
void column_sums(const float* a, std::int64_t rows, std::int64_t stride, std::int64_t begin, std::int64_t end, float* sums) {
  constexpr std::int64_t group = 64;
  for (std::int64_t column = begin; column < end; column += lanes) {
    vfloat total = splat(0.0F);
    for (std::int64_t first = 0; first < rows; first += group) {
      vfloat part = splat(0.0F);
      for (std::int64_t r = first; r < rows && r < first + group; ++r) part += load(a + r * stride + column);
      total += part;
    }
    store(sums + column, total);
  }
}

}  // namespace

const LstmKernels lstm_kernels{forward, backward, column_sums};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
