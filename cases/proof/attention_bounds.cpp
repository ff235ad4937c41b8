// Bounds on the error of an attention run in f32 arithmetic, to first order in the unit roundoff u, from the magnitudes of the
// case itself: nothing here is fitted to what a kernel gives. Products of bf16 in pairs are sums of exact products in another
// order.
#include "cases/proof/attention_problem.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::proof {
namespace {

/// Where the elements of one case lie.
struct Places {
  std::int64_t batch, sq, sk, hq, hk, d, dv;
  std::size_t query(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return static_cast<std::size_t>((b * sq + i) * hq + h);
  }
  std::size_t key(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return static_cast<std::size_t>((b * sk + j) * hk + h * hk / hq);
  }
  std::size_t statistic(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>((b * hq + h) * sq + i);
  }
};

/// What a rounding costs beside the unit roundoff: below f16's smallest normal number half of 2^-24.
double least_rounding(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0; }

double magnitude(const Values& a, std::size_t a_row, const Values& b, std::size_t b_row, std::int64_t n) {
  double sum = 0;
  for (std::size_t e = 0; e < static_cast<std::size_t>(n); ++e) {
    const double term = std::fabs(a[a_row * static_cast<std::size_t>(n) + e] * b[b_row * static_cast<std::size_t>(n) + e]);
    sum += std::isnan(term) ? 0 : term;  // padding
  }
  return sum;
}

void add(Values& out, std::size_t row, const Values& x, std::size_t x_row, std::int64_t n, double factor) {
  if (factor == 0) return;
  for (std::size_t e = 0; e < static_cast<std::size_t>(n); ++e)
    out[row * static_cast<std::size_t>(n) + e] += factor * std::fabs(x[x_row * static_cast<std::size_t>(n) + e]);
}

/// P itself: attention with the identity as values.
Values probabilities(AttentionDescription d, const AttentionSizes& s, AttentionInputs in, std::int64_t kv_heads) {
  d.dtype = DType::f64, d.value_dim = s.keys, d.dropout = 0;
  in.v.assign(static_cast<std::size_t>(s.batch * s.keys * kv_heads * s.keys), 0.0);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t j = 0; j < s.keys; ++j)
      for (std::int64_t h = 0; h < kv_heads; ++h)
        in.v[static_cast<std::size_t>(((b * s.keys + j) * kv_heads + h) * s.keys + j)] = 1;
  in.d_o.clear();
  return run_attention(d, s, in, {.options = {.force = "reference.attention"}, .backward = false}).o;
}

/// One query's part. Names as in Dao's paper: S = scale q·k, P, dP = do·v, delta = Σ do o, dS = P (dP - delta + dlse).
struct QueryBounds {
  const AttentionDescription& d;
  const AttentionInputs& in;
  const AttentionResults& exact;
  const Places& at;
  const Values& p;          // [B, Sq, Hq, Sk]
  double u, storage, keep;  // keep = 1 / (1 - dropout)
  Operands operands;

  /// What P and dS, as operands of a product, lose where they are rounded to the storage type: a share of themselves, and what lies
  /// below the smallest normal number (an exponential is at most its sum, so that it loses no more than P does).
  double share() const { return operands == Operands::stored ? storage : 0; }
  double least() const { return operands == Operands::stored ? least_rounding(d.dtype) : 0; }

  double scale() const {
    if (d.scale != 0 || at.d == 0) return std::fabs(static_cast<double>(d.scale));
    return 1 / std::sqrt(static_cast<double>(at.d));
  }

  /// The largest magnitudes among the keys that a query sees: of the scaled product, and of bias and ALiBi.
  struct Sizes {
    double product = 0, extra = 0;
  };
  Sizes sizes(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const auto cell = static_cast<std::size_t>(b);
    const double sq = in.query_lengths.empty() ? static_cast<double>(at.sq) : in.query_lengths[cell];
    const double sk = in.key_lengths.empty() ? static_cast<double>(at.sk) : in.key_lengths[cell];
    const double diagonal = d.alignment == CausalAlignment::bottom_right ? sk - sq : 0;
    Sizes out;
    for (std::int64_t j = 0; j < at.sk; ++j) {
      if (probability(at.query(b, i, h), j) == 0) continue;
      out.product = std::max(out.product, scale() * magnitude(in.q, at.query(b, i, h), in.k, at.key(b, j, h), at.d));
      double extra = d.bias ? std::fabs(in.bias[bias_place(b, h, i, j)]) : 0;
      if (d.alibi)
        extra += in.slopes[static_cast<std::size_t>((in.slope_rows > 0 ? b * at.hq : 0) + h)] *
                 std::fabs(static_cast<double>(i - j) + diagonal);
      out.extra = std::max(out.extra, extra);
    }
    return out;
  }
  std::size_t bias_place(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t row = in.bias_rows == 1 ? 0 : b, head = in.bias_heads == 1 ? 0 : h;
    return static_cast<std::size_t>(((row * in.bias_heads + head) * at.sq + i) * at.sk + j);
  }

  /// Roundings of a probability relative to itself: the score (D + 2 roundings of Σ|q k|; softcap: 2 of its argument, 6 of tanh, 1
  /// of its factor; bias and ALiBi: a sum each, and ALiBi a product), the exponential (4, and |S - max| of the shift), a rescale a
  /// block of at least 16 keys (5, and in all |S - max| of the shifts), and the sum of Sk terms.
  double relative(const Sizes& size) const {
    double score = size.product * static_cast<double>(at.d + 2);
    if (d.softcap > 0) score += 9 * size.product;
    if (d.bias || d.alibi) score += 2 * size.product + 3 * size.extra;
    const auto sk = static_cast<double>(at.sk);
    return u * (score + 2 * 2 * (size.product + size.extra) + 16 + 5 * (sk / 16 + 1) + sk);
  }
  /// Error of the derivative of softcap, 1 - t² with t within 8 u: that of t² and its two roundings, two products with it, and what
  /// the error of its argument x = S / softcap moves it, at most 2 |t| dx.
  double slope_error(const Sizes& size) const {
    if (d.softcap == 0) return 0;
    return u * (16 + 2 + 2) + 2 * u * size.product * static_cast<double>(at.d + 4) / static_cast<double>(d.softcap);
  }

  void accumulate(AttentionResults& out, std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::size_t row = at.query(b, i, h), cell = at.statistic(b, h, i);
    const Sizes largest = sizes(b, h, i);
    const double r = relative(largest), bend = slope_error(largest), factor = scale(),
                 lse = std::isfinite(exact.lse[cell]) ? std::fabs(exact.lse[cell]) : 0;
    out.lse[cell] = r + 2 * u * lse;
    for (std::int64_t j = 0; j < at.sk; ++j) {
      const double weight = probability(row, j);
      if (weight > 0) add(out.o, row, in.v, at.key(b, j, h), at.dv, keep * ((2 * r + share()) * weight + least()));
    }
    add(out.o, row, exact.o, row, at.dv, storage);
    for (std::size_t e = 0; e < static_cast<std::size_t>(at.dv); ++e)
      out.o[row * static_cast<std::size_t>(at.dv) + e] += least_rounding(d.dtype);
    const double mean = magnitude(in.d_o, row, exact.o, row, at.dv);
    const double e_delta = (static_cast<double>(at.dv) + 1) * u * mean + magnitude(in.d_o, row, out.o, row, at.dv);
    const double e_p = r + out.lse[cell] + 8 * u;  // relative, of exp(S - lse)
    const double outer = mean + std::fabs(in.dlse[cell]);
    const double terms_k = static_cast<double>(at.sk) + 2, terms_q = static_cast<double>(at.sq * at.hq / at.hk) + 2;
    const double terms_b = static_cast<double>(at.batch * at.hq) + 2;
    for (std::int64_t j = 0; j < at.sk; ++j) {
      const double weight = probability(row, j);
      if (weight == 0) continue;
      const std::size_t key = at.key(b, j, h);
      const double dp = keep * magnitude(in.d_o, row, in.v, key, at.dv), size = weight * (dp + outer);
      const double e_ds = e_p * size + weight * ((static_cast<double>(at.dv) + 4) * u * dp + e_delta) + 3 * u * size;
      add(out.dq, row, in.k, key, at.d, factor * (e_ds + (terms_k * u + bend + share()) * size + least()));
      add(out.dk, key, in.q, row, at.d, factor * (e_ds + (terms_q * u + bend + share()) * size + least()));
      add(out.dv, key, in.d_o, row, at.dv, keep * (weight * (e_p + terms_q * u + share()) + least()));
      if (!out.dbias.empty()) out.dbias[bias_place(b, h, i, j)] += e_ds + terms_b * u * size;
    }
  }

  double probability(std::size_t row, std::int64_t j) const {
    return p[row * static_cast<std::size_t>(at.sk) + static_cast<std::size_t>(j)];
  }
};

}  // namespace

AttentionResults attention_bounds(const AttentionDescription& description, const AttentionSizes& sizes, const AttentionInputs& in,
                                  const AttentionResults& exact, Operands operands) {
  const AttentionDescription d = padded(description);
  const AttentionSizes s = padded(sizes);
  const std::int64_t kv = d.kv_heads == 0 ? d.heads : d.kv_heads;
  const Places at{s.batch, s.queries, s.keys, d.heads, kv, d.head_dim, d.value_dim == 0 ? d.head_dim : d.value_dim};
  AttentionResults out;
  out.o.assign(exact.o.size(), 0.0), out.lse.assign(exact.lse.size(), 0.0), out.dq.assign(exact.dq.size(), 0.0);
  out.dk.assign(exact.dk.size(), 0.0), out.dv.assign(exact.dv.size(), 0.0), out.dbias.assign(exact.dbias.size(), 0.0);
  const double u = unit_roundoff(d.dtype == DType::f64 ? DType::f64 : DType::f32), storage = unit_roundoff(d.dtype);
  if (s.keys > 0) {
    const Values p = probabilities(d, s, in, kv);
    const QueryBounds query{d, in, exact, at, p, u, storage, 1 / (1 - static_cast<double>(d.dropout)), operands};
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < d.heads; ++h)
        for (std::int64_t i = 0; i < s.queries; ++i) query.accumulate(out, b, h, i);
  }
  // The result's own rounding, one per cent for the terms of second order, and what underflows in an exponential or counts as zero
  // in a product of pairs: D + 1 numbers below 2^-126 beside factors of a few units.
  const auto finish = [&](Values& bound, const Values& value, double roundoff) {
    const double least = roundoff > 0 ? least_rounding(d.dtype) : 0;
    for (std::size_t i = 0; i < bound.size(); ++i)
      bound[i] = 1.01 * bound[i] + roundoff * std::fabs(std::isfinite(value[i]) ? value[i] : 0) + least + 1e-30;
  };
  finish(out.o, exact.o, 0), finish(out.lse, exact.lse, 0), finish(out.dq, exact.dq, storage), finish(out.dk, exact.dk, storage);
  finish(out.dv, exact.dv, storage), finish(out.dbias, exact.dbias, storage);
  return out;
}

}  // namespace everglow::proof
