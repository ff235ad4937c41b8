// FlashAttention-2 backward for one block of queries and a run of keys: scores again, P = exp(S - LSE), dS = P (do·v - delta), then
// the three gradients. dq stays in scratch over all keys; dk and dv are added to in the caller's accumulators.
#include "core/mutant.hpp"
#include "cpu/isa/attention_hidden.hpp"
#include "cpu/isa/attention_options.hpp"
#include "cpu/isa/attention_words.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// delta[queries] = Σ do · o - dlse, by transposed squares: do is in scratch, o is read as it lies.
template <int NV>
void deltas(const FlashBackwardBlock& b, vfloat (&delta)[NV], vfloat (&lse)[NV]) {
  const FlashShape& s = b.shape;
  float gradient[NV * lanes], logarithm[NV * lanes];
  for (int i = 0; i < NV * lanes; ++i) {
    const bool real = i < s.queries;
    gradient[i] = real && b.dlse.data != nullptr ? b.dlse.data[i * b.dlse.stride] : 0.0F;
    logarithm[i] = real ? b.lse.data[i * b.lse.stride] : __builtin_inff();
    // exp(S - inf) = 0: neither a lane without a query nor a query without a key has gradients
    if (logarithm[i] == -__builtin_inff()) logarithm[i] = __builtin_inff();
  }
  for (int v = 0; v < NV; ++v) {
    lse[v] = load(logarithm + v * lanes);
    delta[v] = flipped("attention.lse_gradient", vfloat{} - load(gradient + v * lanes));
    for (std::int64_t column = 0; column < s.value_dim && b.d_o.data != nullptr; column += lanes) {
      vfloat square[lanes];
      with_rows(b.o, [&](const auto& o) { load_square(square, o, v * lanes, s.queries, column, s.value_dim); });
      transpose(square);
      const int kept = static_cast<int>(s.value_dim - column < lanes ? s.value_dim - column : lanes);
      for (int i = 0; i < kept; ++i)
        delta[v] += dropped("attention.delta", square[i]) * load(b.scratch.d_o + (column + i) * NV * lanes + v * lanes);
    }
  }
}

/// P (after dropout) and dS of one key block, from adjusted scores in p and do·v in ds, both 0 for hidden pairs; with a bias its
/// gradient takes the bias's place.
template <int NV>
void score_gradients(const FlashBackwardBlock& b, const Sight<NV>& sight, const vfloat (&delta)[NV], const vfloat (&lse)[NV],
                     const TilePlace& at) {
  const bool masked = !sight.covers(at.key, at.key + at.keys), flows = b.d_o.data != nullptr, bends = b.options.softcap > 0;
  const bool drops = b.options.drops, biased = b.dbias.data != nullptr, hides = masked || b.options.bias.data != nullptr;
  const float scale = b.shape.scale;
  if (drops) keep_tile<NV>(b.options, at, b.scratch);
  for (std::int64_t j = 0; j < at.keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const std::int64_t place = (j * NV + v) * lanes;
      const vfloat score = load(b.scratch.p + place);
      vint hidden{};
      if (hides) hidden = score == -infinity();
      if (masked && !mutant("attention.mask_of_p")) hidden |= ~sight.sees(at.key + j, v);
      vfloat e = vexp(score - lse[v]);
      if (hides) e = hidden ? vfloat{} : e;
      vfloat dp = flows ? load(b.scratch.ds + place) : vfloat{};
      if (drops) {
        const vfloat keep = load(b.scratch.keep + place);
        store(b.scratch.p + place, mutant("attention.dropout_of_p") ? e : e * keep);
        if (!mutant("attention.dropout_of_dp")) dp *= keep;
      } else {
        store(b.scratch.p + place, e);
      }
      const auto seen = [&](vfloat x) { return hides && !mutant("attention.hidden_gradient") ? (hidden ? vfloat{} : x) : x; };
      vfloat gradient = e * (dp - delta[v]);
      if (biased) store(b.scratch.bias + place, flipped("attention.bias_gradient", seen(gradient)));
      if (bends && !mutant("attention.softcap_slope")) gradient *= load(b.scratch.slopes + place);
      gradient = seen(gradient);
      store(b.scratch.ds + place, mutant("attention.scale") ? gradient : gradient * scale);
    }
}

template <int NV>
void put_bias_gradient(const FlashBackwardBlock& b, const TilePlace& at, const float* ones) {
  constexpr std::int64_t stride = wide(block_keys);
  unpack_transposed<NV>(b.scratch.bias, ones, at.count, at.keys, stored(b.scratch.rows, stride));
  with_output(b.dbias, [&]<class S>(const Output<S>& out) {
    S row[stride];
    for (std::int64_t i = 0; i < at.count; ++i) {
      S* const to = out.data + i * out.stride + (at.key - b.key_origin) * b.dbias_key;
      const float* const from = b.scratch.rows + i * stride;
      if (b.add_bias) {
        float* const sum = reinterpret_cast<float*>(to);
        for (std::int64_t j = 0; j < at.keys; ++j) sum[j * b.dbias_key] += from[j];
        continue;
      }
      for (std::int64_t j = 0; j < at.keys; j += lanes) store(row + j, load(from + j));
      for (std::int64_t j = 0; j < at.keys; ++j) to[j * b.dbias_key] = row[j];
    }
  });
}

/// The rows that the gradients of a tile are made of. Where pairs are hidden: which of the rows are not finite.
struct GradientRows {
  FlashRows q{}, d_o{}, k{};
  RowSet q_apart = 0, d_o_apart = 0, k_apart = 0;
  HiddenPairs hidden;
  bool hides = false, looked = false;  // looked: at q and do, which are those of the whole block

  template <int NV>
  void look(const FlashBackwardBlock& b, const TilePlace& at, const Sight<NV>& sight) {
    if (!looked && q.data != nullptr) q_apart = rows_not_finite(q, b.shape.queries, b.shape.head_dim);
    if (!looked && d_o.data != nullptr) d_o_apart = rows_not_finite(d_o, b.shape.queries, b.shape.value_dim);
    looked = true;
    if (b.dq.data != nullptr) k_apart = rows_not_finite(k, at.keys, b.shape.head_dim);
    if ((k_apart | q_apart | d_o_apart) != 0) hidden.find(b.scratch.p, at.key, at.keys, sight);
  }
};

/// The gradients that one key block gives, from P in p and dS in ds. `add_dq`: it is not the first of the block.
template <int NV>
void add_gradients(const FlashBackwardBlock& b, const GradientRows& rows, const TilePlace& at, bool add_dq) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const std::int64_t row = at.key - b.key_origin;
  const HiddenPairs& hidden = rows.hidden;
  const auto by_query = [&](std::int64_t, std::int64_t query, std::int64_t key) { return hidden.has(query, key); };
  const auto by_key = [&](std::int64_t key, std::int64_t, std::int64_t query) { return hidden.has(query, key); };
  if (b.dq.data != nullptr) {
    const Product dq{rows.k.data, rows.k.stride, b.scratch.ds, width, b.scratch.dq, width, s.head_dim, at.keys, add_dq, nullptr};
    if (!rows.hides || rows.k_apart == 0)
      multiply<NV, true>(dq);
    else
      multiply_apart<true>(dq, NV, rows.k_apart, by_query);
  }
  const auto add = [&](const float* weights, const FlashRows& from, RowSet apart, const FlashOutput& to, std::int64_t columns) {
    const Product product{weights,   width,   from.data, from.stride, to.data + row * to.stride,
                          to.stride, at.keys, s.queries, true,        nullptr};
    if (!rows.hides || apart == 0)
      multiply_wide(product, whole_vectors(columns));
    else
      multiply_apart<false>(product, whole_vectors(columns), apart, by_key);
  };
  if (b.dk.data != nullptr) add(b.scratch.ds, rows.q, rows.q_apart, b.dk, s.head_dim);
  if (b.dv.data != nullptr && rows.d_o.data != nullptr) add(b.scratch.p, rows.d_o, rows.d_o_apart, b.dv, s.value_dim);
}

template <int NV>
void backward(const FlashBackwardBlock& b) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const FlashScratch& scratch = b.scratch;
  Sight<NV> sight;
  sight.set(s, 0);
  const bool flows = b.d_o.data != nullptr, wants_ds = b.dq.data != nullptr || b.dk.data != nullptr || b.dbias.data != nullptr;
  const bool any = s.key_begin < s.key_end;
  vfloat delta[NV]{}, lse[NV]{};
  GradientRows rows;
  if (any) {
    pack_columns<NV>(b.q, s.queries, s.head_dim, s.scale, scratch.q);
    if (flows) pack_transposed<NV>(b.d_o, s.queries, s.value_dim, 1, scratch.d_o);
    deltas<NV>(b, delta, lse);
    if (flows && in_words(b.d_o, s.value_dim)) pack_columns<NV>(b.d_o, s.queries, s.value_dim, 1, scratch.d_o);
    if (b.dk.data != nullptr) rows.q = gathered(b.q, s.queries, s.head_dim, scratch.q_rows);
    if (b.dv.data != nullptr && flows) rows.d_o = gathered(b.d_o, s.queries, s.value_dim, scratch.d_o_rows);
  }
  float ones[width];
  for (float& one : ones) one = 1;
  bool started = false;
  for (std::int64_t j = s.key_begin; j < s.key_end; j += block_keys, started = true) {
    const std::int64_t keys = s.key_end - j < block_keys ? s.key_end - j : block_keys;
    const StoredRows k = rows_from(b.k, j), v = rows_from(b.v, j);
    if (b.dq.data != nullptr || !in_words(k, s.head_dim)) rows.k = gathered(k, keys, s.head_dim, scratch.k_rows);
    multiply_scores<NV>({k, rows.k, keys, s.head_dim, s.scale}, scratch.q, scratch.p);
    if (flows && wants_ds) {
      const FlashRows floats = in_words(v, s.value_dim) ? FlashRows{} : gathered(v, keys, s.value_dim, scratch.v_rows);
      multiply_scores<NV>({v, floats, keys, s.value_dim, 1}, scratch.d_o, scratch.ds);
    }
    const TilePlace at{0, s.queries, j, keys};
    rows.hides = b.options.scores && adjust_scores<NV>(b.options, at, scratch, scratch.slopes);
    rows.hides |= !sight.covers(j, j + keys);
    if (rows.hides) rows.look(b, at, sight);
    score_gradients<NV>(b, sight, delta, lse, at);
    if (b.dbias.data != nullptr) put_bias_gradient<NV>(b, at, ones);
    add_gradients<NV>(b, rows, at, started && !mutant("attention.dq_of_the_last_keys"));
  }
  if (b.dq.data == nullptr) return;
  if (!started)
    for (std::int64_t i = 0; i < s.head_dim * width; i += lanes) store(scratch.dq + i, vfloat{});
  unpack_transposed<NV>(scratch.dq, ones, s.queries, s.head_dim, b.dq);
}

void backward_block(const FlashBackwardBlock& b) {
  const std::int64_t vectors = whole_vectors(b.shape.queries);
  if (vectors == 1)
    backward<1>(b);
  else if (vectors == 2)
    backward<2>(b);
  else if (vectors == 3)
    backward<3>(b);
  else
    backward<4>(b);
}

}  // namespace

extern const AttentionBackwardKernels attention_backward_kernels;
const AttentionBackwardKernels attention_backward_kernels{backward_block};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
