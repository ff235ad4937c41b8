// The LSTM cell, forward and backward, for one instruction set.
#include "cpu/isa/lstm_cell.hpp"

#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr std::int64_t block = lstm_block;

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

void forward(const LstmForwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = unit / block * (4 * block) + unit % block;
    float* gates = row.gates + at;
    const float* bias = row.bias + at;
    const vfloat i = vsigmoid(load(gates) + load(bias));
    const vfloat f = vsigmoid(load(gates + block) + load(bias + block));
    const vfloat g = vtanh(load(gates + 2 * block) + load(bias + 2 * block));
    const vfloat o = vsigmoid(load(gates + 3 * block) + load(bias + 3 * block));
    const vfloat c = f * load(row.c + unit) + i * g;
    const vfloat h = o * vtanh(c);
    store(row.c + unit, c);
    store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
    if (row.cell == nullptr) continue;
    store(row.cell + unit, c);
    store(gates, i), store(gates + block, f), store(gates + 2 * block, g), store(gates + 3 * block, o);
  }
}

void backward(const LstmBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = unit / block * (4 * block) + unit % block;
    const float* gates = row.gates + at;
    const vfloat i = load(gates), f = load(gates + block), g = load(gates + 2 * block), o = load(gates + 3 * block);
    const vfloat squashed = vtanh(load(row.cell + unit));
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
