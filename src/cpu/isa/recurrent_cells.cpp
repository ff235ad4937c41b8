// The recurrent cells, forward and backward, for one instruction set.
#include "cpu/isa/recurrent_cells.hpp"

#include "core/mutant.hpp"
#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr std::int64_t block = cell_block;

/// Where the first of `count` gates of a unit stands.
inline std::int64_t gates_of(std::int64_t unit, std::int64_t count) { return unit / block * (count * block) + unit % block; }

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
  vfloat shifted;
  const vfloat p = exp_reduced(x, shifted);
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(p) + (reinterpret_cast<vint>(shifted) << 23));
}

inline vfloat magnitude(vfloat x) { return reinterpret_cast<vfloat>(reinterpret_cast<vint>(x) & 0x7fffffff); }
inline vfloat with_sign_of(vfloat value, vfloat sign) {
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(value) | (reinterpret_cast<vint>(sign) & ~0x7fffffff));
}

/// tanh x from its value for large |x|, (1 - e) / (1 + e) with e = e^-2|x|, which loses digits near 0.
inline vfloat joined_tanh(vfloat x, vfloat far) { return magnitude(x) < 0.625F ? tanh_near_zero(x) : with_sign_of(far, x); }

inline vfloat bounded_tanh(vfloat x) {
  const vfloat e = bounded_exp(-2.0F * magnitude(x));
  return joined_tanh(x, (1.0F - e) / (1.0F + e));
}

/// Two passes, so that each has a short chain of dependent operations of which many units are in flight at once. Two quotients are
/// made from one division: 1/a = b/(ab).
void lstm_forward(const LstmForwardRow& row) {
  const std::int64_t begin = row.begin * block, end = row.end * block;
  for (std::int64_t unit = begin; unit < end; unit += lanes) {
    const std::int64_t at = gates_of(unit, 4);
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
    const vfloat h = load(row.gates + gates_of(unit, 4) + 3 * block) * bounded_tanh(load(row.c + unit));
    store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
  }
}

void lstm_output(const float* gates, const float* cell, float* out, std::int64_t hidden) {
  for (std::int64_t unit = 0; unit < hidden; unit += lanes)
    store_units(out, unit, hidden, load(gates + gates_of(unit, 4) + 3 * block) * bounded_tanh(load(cell + unit)));
}

void lstm_backward(const LstmBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 4);
    const float* gates = row.gates + at;
    const vfloat i = load(gates), f = load(gates + block), g = load(gates + 2 * block), o = load(gates + 3 * block);
    const vfloat squashed = bounded_tanh(load(row.cell + unit));
    const vfloat dh = load_units(row.dh, unit, row.hidden) + load_units(row.dy, unit, row.hidden);
    const vfloat dc = load(row.dc + unit) + dropped("recurrent.lstm_cell_from_h", dh * o * (1.0F - squashed * squashed));
    float* dz = row.dz + at;
    store(dz, dc * g * i * (1.0F - i));
    store(dz + block, flipped("recurrent.lstm_forget", dc * load_units(row.before, unit, row.hidden) * f * (1.0F - f)));
    store(dz + 2 * block, dc * i * (1.0F - dropped("recurrent.lstm_candidate_slope", g * g)));
    store(dz + 3 * block, dh * squashed * o * (1.0F - o));
    store(row.dc + unit, dropped("recurrent.lstm_carried_cell", dc * f));
  }
}

void gru_forward(const GruForwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 3);
    float* gates = row.gates + at;
    const float* bias = row.bias + at;
    const bool any = row.products != nullptr;
    const vfloat r_product = any ? load(row.products + at) : splat(0.0F);
    const vfloat z_product = any ? load(row.products + at + block) : splat(0.0F);
    const vfloat n_product = any ? load(row.products + at + 2 * block) : splat(0.0F);
    const vfloat r_denominator = 1.0F + bounded_exp(-(load(gates) + r_product + load(bias)));
    const vfloat z_denominator = 1.0F + bounded_exp(-(load(gates + block) + z_product + load(bias + block)));
    const vfloat r_z = 1.0F / (r_denominator * z_denominator);
    const vfloat r = r_z * z_denominator, z = r_z * r_denominator;
    const vfloat inner = n_product + dropped("recurrent.gru_inner_bias", load(row.inner_bias + unit));
    const vfloat n = bounded_tanh(load(gates + 2 * block) + load(bias + 2 * block) + r * inner);
    const vfloat h = (1.0F - z) * n + z * load(row.before + unit);
    store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
    if (row.inner == nullptr) continue;
    store(row.inner + unit, inner);
    store(gates, r), store(gates + block, z), store(gates + 2 * block, n);
  }
}

void gru_backward(const GruBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 3);
    const float* gates = row.gates + at;
    const vfloat r = load(gates), z = load(gates + block), n = load(gates + 2 * block);
    const vfloat dh = load_units(row.dh, unit, row.hidden) + load_units(row.dy, unit, row.hidden);
    const vfloat dn = dh * (1.0F - z) * (1.0F - n * n);
    const vfloat dr = flipped("recurrent.gru_reset", dn * load(row.inner + unit) * r * (1.0F - r));
    const vfloat dz = dh * (load_units(row.before, unit, row.hidden) - n) * z * (1.0F - z);
    store(row.dz + at, dr), store(row.dz + at + block, dz), store(row.dz + at + 2 * block, dn);
    store(row.du + at, dr), store(row.du + at + block, dz), store(row.du + at + 2 * block, dn * r);
    store(row.carried + unit, dropped("recurrent.gru_carried", dh * z));
  }
}

void reset_gates(const ResetForwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 2);
    float* gates = row.gates + at;
    const float* bias = row.bias + at;
    const vfloat r_denominator = 1.0F + bounded_exp(-(load(gates) + load(bias)));
    const vfloat z_denominator = 1.0F + bounded_exp(-(load(gates + block) + load(bias + block)));
    const vfloat r_z = 1.0F / (r_denominator * z_denominator);
    const vfloat r = r_z * z_denominator;
    store(gates, r), store(gates + block, r_z * r_denominator);
    store(row.mixed + unit, r * load(row.before + unit));
  }
}

void reset_candidate(const ResetForwardRow& row) {
  const float* bias = row.bias + (row.candidate - row.gates);
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const vfloat z = load(row.gates + gates_of(unit, 2) + block);
    const vfloat n = bounded_tanh(load(row.candidate + unit) + load(bias + unit));
    const vfloat h = (1.0F - z) * n + z * load(row.before + unit);
    store(row.candidate + unit, n);
    store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
  }
}

void reset_candidate_backward(const ResetBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 2);
    const vfloat z = load(row.gates + at + block), n = load(row.candidate + unit);
    const vfloat dh = load_units(row.dh, unit, row.hidden) + load_units(row.dy, unit, row.hidden);
    store(row.dz + at + block,
          dh * (load_units(row.before, unit, row.hidden) - dropped("recurrent.reset_before_update", n)) * z * (1.0F - z));
    store(row.dcandidate + unit, dh * (1.0F - z) * (1.0F - n * n));
    store(row.carried + unit, dh * z);
  }
}

void reset_gates_backward(const ResetBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const std::int64_t at = gates_of(unit, 2);
    const vfloat r = load(row.gates + at), mixed = load_units(row.mixed, unit, row.hidden);
    store(row.dz + at, mixed * load_units(row.before, unit, row.hidden) * r * (1.0F - r));
    store(row.carried + unit, load(row.carried + unit) + dropped("recurrent.reset_before_mixed", mixed * r));
  }
}

inline vfloat rectified(vfloat x) { return x < 0.0F ? splat(0.0F) : x; }  // NaN stays NaN
inline vfloat tanh_slope(vfloat h) { return 1.0F - dropped("recurrent.tanh_slope", h * h); }
inline vfloat relu_slope(vfloat h) { return h > 0.0F ? splat(1.0F) : splat(mutant("recurrent.relu_slope") ? 1.0F : 0.0F); }

template <vfloat (*activation)(vfloat)>
void plain_forward(const PlainForwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const vfloat h = activation(load(row.gates + unit) + load(row.bias + unit));
    store(row.gates + unit, h), store(row.h + unit, h);
    store_units(row.y, unit, row.hidden, h);
  }
}

/// `slope` is the derivative of the activation where its value is h.
template <vfloat (*slope)(vfloat)>
void plain_backward(const PlainBackwardRow& row) {
  for (std::int64_t unit = row.begin * block; unit < row.end * block; unit += lanes) {
    const vfloat dh = load_units(row.dh, unit, row.hidden) + load_units(row.dy, unit, row.hidden);
    store(row.dz + unit, dh * slope(load(row.gates + unit)));
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

const CellKernels cell_kernels{.lstm_forward = lstm_forward,
                               .lstm_backward = lstm_backward,
                               .lstm_output = lstm_output,
                               .gru_forward = gru_forward,
                               .gru_backward = gru_backward,
                               .reset_gates = reset_gates,
                               .reset_candidate = reset_candidate,
                               .reset_candidate_backward = reset_candidate_backward,
                               .reset_gates_backward = reset_gates_backward,
                               .tanh_forward = plain_forward<bounded_tanh>,
                               .tanh_backward = plain_backward<tanh_slope>,
                               .relu_forward = plain_forward<rectified>,
                               .relu_backward = plain_backward<relu_slope>,
                               .column_sums = column_sums};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
