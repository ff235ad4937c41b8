// Attention in plain loops, one query or one key at a time, all in double. Serves every dtype and option.
// An index i or j counts in a sequence; in the tensors it stands i or j rows after the sequence's first.
#include "core/arena.hpp"
#include "core/attention_mask.hpp"
#include "core/mutant.hpp"
#include "core/philox.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <cmath>
#include <limits>

namespace everglow::reference {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// Σ a[..., :] b[..., :] of two rows of equal length.
double dot(const ConstTensorView& a, std::int64_t a_row, const ConstTensorView& b, std::int64_t b_row) {
  double sum = 0;
  for (std::int64_t d = 0; d < a.size(3); ++d) sum += read(a.data, a.dtype, a_row + d) * read(b.data, b.dtype, b_row + d);
  return sum;
}

/// The score of query i and key j, and its derivative by the product q·k.
struct Score {
  double value = 0, slope = 0;
};

/// What forward and backward share: scores and the dropout mask. `Tensors` is an AttentionForward or an AttentionBackward.
template <class Tensors>
struct Scores {
  const AttentionQuery& query;
  const Tensors& t;
  AttentionGrid grid = attention_grid(query, t);
  std::uint64_t threshold = dropout_threshold(query.description.dropout);

  std::int64_t kv_head(std::int64_t h) const { return h / (query.description.heads / query.description.kv_heads); }

  Score score(const AttentionRows& rows, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const AttentionDescription& d = query.description;
    const double product =
        dot(t.q, offset_of(t.q, b, rows.first_query + i, h), t.k, offset_of(t.k, b, rows.first_key + j, kv_head(h)));
    Score out{d.scale * product, mutant("attention.reference_scale") ? 1 : d.scale};
    if (d.softcap > 0) {
      const double bent = std::tanh(out.value / d.softcap);
      out = {d.softcap * bent, out.slope * (1 - dropped("attention.reference_softcap_slope", bent * bent))};
    }
    const double bias = d.bias ? read(t.bias, t.bias.size(0) == 1 ? 0 : b, t.bias.size(1) == 1 ? 0 : h, i, j) : 0;
    if (bias == minus_infinity) return {minus_infinity, 0};  // whatever q and k hold
    out.value += bias;
    if (d.alibi) {
      const double steepness = t.alibi_slopes.rank == 1 ? read(t.alibi_slopes, h) : read(t.alibi_slopes, b, h);
      out.value -= flipped("attention.reference_slopes", steepness) * std::fabs(static_cast<double>(i + rows.diagonal - j));
    }
    return out;
  }

  /// 0 where dropout drops the element, else 1 / (1 - p).
  double kept(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (query.description.dropout == 0) return 1;
    const std::int64_t element = ((b * query.description.heads + h) * grid.queries + i) * grid.keys + j;
    const bool keep = dropout_keeps(t.dropout_seed, t.dropout_offset, static_cast<std::uint64_t>(element), threshold);
    return keep ? 1 / (1 - static_cast<double>(query.description.dropout)) : 0;
  }
};

struct ForwardScratch {
  double* probability;  // [Sk]
  explicit ForwardScratch(Arena& arena, const AttentionQuery& q) : probability(arena.take<double>(q.sizes.keys)) {}
};
struct BackwardScratch {
  double *key, *value;  // sums of one row of a gradient: [D], [Dv]
  BackwardScratch(Arena& arena, const AttentionQuery& q)
      : key(arena.take<double>(q.description.head_dim)), value(arena.take<double>(q.description.value_dim)) {}
};

Footprint footprint(const AttentionQuery& q) {
  Arena forward, backward;
  const ForwardScratch f(forward, q);
  const BackwardScratch b(backward, q);
  return {.workspace = std::max(forward.bytes(), q.description.training ? backward.bytes() : 0)};
}

/// One query: probabilities into `scratch`, their mean of the values into o, the logarithm of their sum into lse.
void forward_query(const Scores<AttentionForward>& s, const AttentionRows& rows, std::array<std::int64_t, 3> at, double* scratch) {
  const auto& t = s.t;
  const auto [b, h, i] = at;
  const std::int64_t row = rows.first_query + i;
  const KeyRange keys = i < rows.queries ? keys_of(s.query.description, rows, i) : KeyRange{};
  double top = minus_infinity, sum = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    scratch[j] = s.score(rows, b, h, i, j).value;
    if (scratch[j] > top || std::isnan(scratch[j])) top = scratch[j];  // a NaN stays: nothing is greater
  }
  const bool none = top == minus_infinity;
  constexpr double hidden = -1;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    if (scratch[j] == minus_infinity) {
      scratch[j] = hidden;
      continue;
    }
    scratch[j] = std::exp(scratch[j] - top);
    sum += scratch[j];
    scratch[j] *= s.kept(b, h, i, j);
  }
  for (std::int64_t d = 0; d < t.o.size(3); ++d) {
    double value = 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j)
      if (scratch[j] != hidden) value += scratch[j] * read(t.v, b, rows.first_key + j, s.kv_head(h), d);
    write(t.o, none ? 0 : value / sum, b, row, h, d);
  }
  if (t.lse.given()) write(t.lse, none ? minus_infinity : top + dropped("attention.reference_lse", std::log(sum)), b, h, row);
}

void forward(const AttentionQuery& query, const AttentionForward& tensors, void* workspace, const Stream&) {
  Arena arena(workspace);
  const ForwardScratch scratch(arena, query);
  const AttentionForward t = unpacked(query.description, tensors);
  const Scores<AttentionForward> s{query, t};
  for (std::int64_t b = 0; b < s.grid.batch; ++b) {
    const AttentionRows rows = attention_rows(query.description, t, b);
    for (std::int64_t h = 0; h < query.description.heads; ++h)
      for (std::int64_t i = 0; i < rows.all_queries; ++i) forward_query(s, rows, {b, h, i}, scratch.probability);
  }
}

/// One element of the matrix of scores on the way back.
struct ScoreGradient {
  bool hidden = true;      // takes no part
  double probability = 0;  // after dropout: what multiplied the value
  double score = 0;        // by the score after softcap and bias
  double product = 0;      // by the product q·k
};

struct Backward {
  const Scores<AttentionBackward> s;

  /// Σ do · o less the gradient of LSE: what every score gradient of a query subtracts.
  double offset(const AttentionRows& rows, std::int64_t b, std::int64_t h, std::int64_t i) const {
    const auto& t = s.t;
    const std::int64_t row = rows.first_query + i;
    double sum = t.dlse.given() ? flipped("attention.reference_lse_gradient", -read(t.dlse, b, h, row)) : 0;
    if (t.d_o.given())
      sum += dropped("attention.reference_delta", dot(t.d_o, offset_of(t.d_o, b, row, h), t.o, offset_of(t.o, b, row, h)));
    return sum;
  }

  ScoreGradient at(const AttentionRows& rows, std::array<std::int64_t, 4> place, double offset) const {
    const auto& t = s.t;
    const auto [b, h, i, j] = place;
    const std::int64_t query = rows.first_query + i, key = rows.first_key + j;
    const double lse = read(t.lse, b, h, query);
    if (lse == minus_infinity) return {};
    const Score score = s.score(rows, b, h, i, j);
    if (score.value == minus_infinity) return {};
    const double p = std::exp(score.value - lse), kept = s.kept(b, h, i, j);
    double dp = 0;
    if (t.d_o.given() && kept != 0)
      dp = (mutant("attention.reference_dropout_of_dp") ? 1 : kept) *
           dot(t.d_o, offset_of(t.d_o, b, query, h), t.v, offset_of(t.v, b, key, s.kv_head(h)));
    const double ds = p * (dp - offset);
    return {false, mutant("attention.reference_dropout_of_p") ? p : p * kept, ds, ds * score.slope};
  }

  void query_gradient(const BackwardScratch& scratch, const AttentionRows& rows, std::array<std::int64_t, 3> place) const {
    const auto& t = s.t;
    const auto [b, h, i] = place;
    std::fill_n(scratch.key, t.q.size(3), 0.0);
    const KeyRange keys = i < rows.queries ? keys_of(s.query.description, rows, i) : KeyRange{};
    const double off = keys.begin < keys.end ? offset(rows, b, h, i) : 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const ScoreGradient g = at(rows, {b, h, i, j}, off);
      if (g.hidden && !mutant("attention.reference_hidden_keys")) continue;
      const std::int64_t row = offset_of(t.k, b, rows.first_key + j, s.kv_head(h));
      for (std::int64_t d = 0; d < t.q.size(3); ++d) scratch.key[d] += g.product * read(t.k.data, t.k.dtype, row + d);
    }
    for (std::int64_t d = 0; d < t.q.size(3); ++d) write(t.dq, scratch.key[d], b, rows.first_query + i, h, d);
  }

  void key_gradient(const BackwardScratch& scratch, const AttentionRows& rows, std::array<std::int64_t, 3> place) const {
    const auto& t = s.t;
    const auto [b, kv_head, j] = place;
    const std::int64_t group = s.query.description.heads / s.query.description.kv_heads, key = rows.first_key + j;
    std::fill_n(scratch.key, t.k.size(3), 0.0);
    std::fill_n(scratch.value, t.v.size(3), 0.0);
    for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group && j < rows.keys; ++h) {
      for (std::int64_t i = 0; i < rows.queries; ++i) {
        const KeyRange keys = keys_of(s.query.description, rows, i);
        if (j < keys.begin || j >= keys.end) continue;
        const ScoreGradient g = at(rows, {b, h, i, j}, offset(rows, b, h, i));
        if (g.hidden && !mutant("attention.reference_hidden_queries")) continue;
        const std::int64_t query = rows.first_query + i, q_row = offset_of(t.q, b, query, h);
        for (std::int64_t d = 0; d < t.k.size(3); ++d) scratch.key[d] += g.product * read(t.q.data, t.q.dtype, q_row + d);
        for (std::int64_t d = 0; d < t.v.size(3) && t.d_o.given(); ++d)
          scratch.value[d] += g.probability * read(t.d_o, b, query, h, d);
      }
    }
    for (std::int64_t d = 0; d < t.k.size(3) && t.dk.given(); ++d) write(t.dk, scratch.key[d], b, key, kv_head, d);
    for (std::int64_t d = 0; d < t.v.size(3) && t.dv.given(); ++d) write(t.dv, scratch.value[d], b, key, kv_head, d);
  }

  /// Element (row, head, i, j) of dbias, summed over what the bias was broadcast to.
  void bias_gradient(std::array<std::int64_t, 4> place) const {
    const auto& t = s.t;
    const auto [row, head, i, j] = place;
    const bool every_row = t.dbias.size(0) == 1, every_head = t.dbias.size(1) == 1;
    double sum = 0;
    for (std::int64_t b = every_row ? 0 : row; b < (every_row ? s.grid.batch : row + 1); ++b) {
      const AttentionRows rows = attention_rows(s.query.description, t, b);
      const KeyRange keys = i < rows.queries ? keys_of(s.query.description, rows, i) : KeyRange{};
      if (j < keys.begin || j >= keys.end) continue;
      for (std::int64_t h = every_head ? 0 : head; h < (every_head ? t.q.size(2) : head + 1); ++h)
        sum += at(rows, {b, h, i, j}, offset(rows, b, h, i)).score;
    }
    write(t.dbias, flipped("attention.reference_bias_gradient", sum), row, head, i, j);
  }
};

void backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace, const Stream&) {
  Arena arena(workspace);
  const BackwardScratch scratch(arena, query);
  const AttentionBackward t = unpacked(query.description, tensors);
  const Backward gradient{{query, t}};
  for (std::int64_t b = 0; b < gradient.s.grid.batch; ++b) {
    const AttentionRows rows = attention_rows(query.description, t, b);
    for (std::int64_t h = 0; h < t.q.size(2) && t.dq.given(); ++h)
      for (std::int64_t i = 0; i < rows.all_queries; ++i) gradient.query_gradient(scratch, rows, {b, h, i});
    for (std::int64_t h = 0; h < t.k.size(2) && (t.dk.given() || t.dv.given()); ++h)
      for (std::int64_t j = 0; j < rows.all_keys; ++j) gradient.key_gradient(scratch, rows, {b, h, j});
  }
  if (!t.dbias.given()) return;
  for (std::int64_t b = 0; b < t.dbias.size(0); ++b)
    for (std::int64_t h = 0; h < t.dbias.size(1); ++h)
      for (std::int64_t i = 0; i < t.dbias.size(2); ++i)
        for (std::int64_t j = 0; j < t.dbias.size(3); ++j) gradient.bias_gradient({b, h, i, j});
}

Verdict accepts(const AttentionQuery&) { return accept(); }

}  // namespace

const AttentionRow attention{
    .name = "reference.attention", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::reference
