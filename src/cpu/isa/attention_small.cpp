// Attention of whole small heads, as of a translator's sentences: one tile of scores with keys side by side in vectors. Only k (and
// v on the way back) is transposed; q, do, o and the gradients are read and written in rows as they lie, since at these sizes
// moving a head's rows costs as much as multiplying them.
#include "core/mutant.hpp"
#include "cpu/isa/attention_hidden.hpp"
#include "cpu/isa/attention_words.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// Maxima of `lanes` vectors, in the lanes of one.
vfloat maxima_of(vfloat (&a)[lanes]) {
#pragma GCC unroll 4
  for (int width = lanes / 2; width > 0; width /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) a[i] = vmax(interleave_low(a[i], a[i + width]), interleave_high(a[i], a[i + width]));
  return a[0];
}

/// Rows in f32 where they are not read as words.
FlashRows floats_of(const StoredRows& rows, std::int64_t count, std::int64_t width, float* copy) {
  return in_words(rows, width) ? FlashRows{} : in_floats(rows, count, width, copy);
}

float* row_of(const FlashOutput& rows, std::int64_t first) { return rows.data + first * rows.stride; }

/// The keys that one query sees, in the lanes of vectors that start at the block's first key.
struct RowSight {
  std::int32_t first, end;
  RowSight(const FlashShape& s, std::int64_t query)
      : first(s.first_key[query] - static_cast<std::int32_t>(s.key_begin)),
        end(s.end_key[query] - static_cast<std::int32_t>(s.key_begin)) {}
  bool covers(std::int64_t keys) const { return first <= 0 && end >= keys; }
  vint sees(int v) const {
    vint j;
    for (int i = 0; i < lanes; ++i) j[i] = v * lanes + i;
    return (j >= first) & (j < end);
  }
};

/// multiply_wide of [.., queries or keys] by rows of the keys or queries, of which those that are not finite reach only what sees
/// them. `by_query`: the rows of C are queries and k runs over the keys; else the other way round.
template <bool ATransposed>
void multiply_seen(const FlashShape& s, const Product& p, std::int64_t columns, bool by_query) {
  const std::int64_t keys = s.key_end - s.key_begin;
  bool hides = false;
  for (std::int64_t i = 0; i < s.queries; ++i) hides |= !RowSight(s, i).covers(keys);
  const RowSet apart = hides ? rows_not_finite({p.b, p.ldb}, p.k, columns) : 0;
  if (apart == 0) return multiply_wide<ATransposed>(p, columns / lanes);
  multiply_apart<ATransposed>(p, columns / lanes, apart, [&](std::int64_t row, std::int64_t, std::int64_t k) {
    const RowSight sight(s, by_query ? row : k);
    const std::int64_t key = by_query ? k : row;
    return key < sight.first || key >= sight.end;
  });
}

/// Scores of up to `lanes` queries from `query` on become probabilities.
template <int NV>
void softmax_rows(const FlashForwardBlock& b, std::int64_t query) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const int rows = static_cast<int>(s.queries - query < lanes ? s.queries - query : lanes);
  float* const p = b.scratch.p + query * width;
  vfloat all[lanes];
  for (int r = 0; r < lanes; ++r) all[r] = -infinity();
  for (int r = 0; r < rows; ++r) {
    const RowSight sight(s, query + r);
    const bool whole = sight.covers(width);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      float* const at = p + r * width + v * lanes;
      vfloat score = load(at);
      if (!whole) {
        score = sight.sees(v) ? score : -infinity();
        store(at, score);
      }
      all[r] = vmax(all[r], score);
    }
  }
  const vfloat top = maxima_of(all), shift = top == -infinity() ? vfloat{} : top;
  float number[lanes];
  store(number, shift);
  for (int r = 0; r < lanes; ++r) all[r] = vfloat{};
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      float* const at = p + r * width + v * lanes;
      const vfloat e = vexp(load(at) - number[r]);
      all[r] += e;
      store(at, e);
    }
  const vfloat total = sums_of(all);
  if (b.lse != nullptr) {
    store(number, shift + vlog(total));
    for (int r = 0; r < rows; ++r) b.lse[(query + r) * b.lse_stride] = number[r];
  }
  store(number, total == 0.0F ? vfloat{} : 1.0F / total);
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(p + r * width + v * lanes, load(p + r * width + v * lanes) * number[r]);
}

template <int NV>
void forward(const FlashForwardBlock& b) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const std::int64_t keys = s.key_end - s.key_begin;
  pack_columns<NV>(rows_from(b.k, s.key_begin), keys, s.head_dim, s.scale, b.scratch.q);
  multiply_scores<NV>({b.q, floats_of(b.q, s.queries, s.head_dim, b.scratch.q_rows), s.queries, s.head_dim, s.scale}, b.scratch.q,
                      b.scratch.p);
  for (std::int64_t query = 0; query < s.queries; query += lanes) softmax_rows<NV>(b, query);
  const FlashRows v = gathered(rows_from(b.v, s.key_begin), keys, s.value_dim, b.scratch.v_rows);
  const FlashOutput o = made_in(b.o, b.scratch.o, s.value_dim);
  multiply_seen<false>(s, {b.scratch.p, width, v.data, v.stride, o.data, o.stride, s.queries, keys, false, nullptr}, s.value_dim,
                       true);
  if (b.o.storage != FlashStorage::f32) put_rows({o.data, o.stride}, s.queries, s.value_dim, b.o);
}

/// delta = Σ do · o - dlse of up to `lanes` queries from `query` on.
vfloat deltas(const FlashBackwardBlock& b, std::int64_t query, int rows) {
  vfloat sum[lanes];
  float gradient[lanes] = {};
  for (int r = 0; r < lanes; ++r) sum[r] = vfloat{};
  for (int r = 0; r < rows && b.dlse.data != nullptr; ++r) gradient[r] = b.dlse.data[(query + r) * b.dlse.stride];
  if (b.d_o.data != nullptr)
    with_rows(b.d_o, [&]<class S>(const Rows<S>& d_o) {
      for (int r = 0; r < rows; ++r) {
        const S *const x = d_o.data + (query + r) * d_o.stride, *const y =
                                                                    static_cast<const S*>(b.o.data) + (query + r) * b.o.stride;
        for (std::int64_t e = 0; e < b.shape.value_dim; e += lanes) sum[r] += load(x + e) * load(y + e);
      }
    });
  return dropped("attention.small_delta", sums_of(sum)) - flipped("attention.small_lse_gradient", load(gradient));
}

/// P and dS of up to `lanes` queries from `query` on, from scores in p and do·v in ds.
template <int NV>
void gradient_rows(const FlashBackwardBlock& b, std::int64_t query) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const int rows = static_cast<int>(s.queries - query < lanes ? s.queries - query : lanes);
  float delta[lanes];
  store(delta, deltas(b, query, rows));
  for (int r = 0; r < rows; ++r) {
    const RowSight sight(s, query + r);
    const bool whole = sight.covers(width), flows = b.d_o.data != nullptr;
    const float lse = b.lse.data[(query + r) * b.lse.stride];
    // exp(S - inf) = 0: a query without a key has no gradients
    const vfloat shift = splat(lse == -__builtin_inff() ? __builtin_inff() : lse);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      float* const p = b.scratch.p + (query + r) * width + v * lanes;
      float* const ds = b.scratch.ds + (query + r) * width + v * lanes;
      vfloat e = vexp(load(p) - shift);
      if (!whole && !mutant("attention.small_mask_of_p")) e = sight.sees(v) ? e : vfloat{};
      store(p, e);
      const vfloat gradient = e * ((flows ? load(ds) : vfloat{}) - delta[r]) * (mutant("attention.small_scale") ? 1 : s.scale);
      const bool all = whole || mutant("attention.small_hidden_gradient");
      store(ds, all ? gradient : sight.sees(v) ? gradient : vfloat{});
    }
  }
}

template <int NV>
void backward(const FlashBackwardBlock& b, bool add) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const FlashScratch& scratch = b.scratch;
  const std::int64_t keys = s.key_end - s.key_begin, row = s.key_begin - b.key_origin;
  const bool flows = b.d_o.data != nullptr, wants_ds = b.dq.data != nullptr || b.dk.data != nullptr;
  pack_columns<NV>(rows_from(b.k, s.key_begin), keys, s.head_dim, s.scale, scratch.q);
  multiply_scores<NV>({b.q, floats_of(b.q, s.queries, s.head_dim, scratch.q_rows), s.queries, s.head_dim, s.scale}, scratch.q,
                      scratch.p);
  if (flows && wants_ds) {
    pack_columns<NV>(rows_from(b.v, s.key_begin), keys, s.value_dim, 1, scratch.d_o);
    multiply_scores<NV>({b.d_o, floats_of(b.d_o, s.queries, s.value_dim, scratch.d_o_rows), s.queries, s.value_dim, 1}, scratch.d_o,
                        scratch.ds);
  }
  for (std::int64_t query = 0; query < s.queries; query += lanes) gradient_rows<NV>(b, query);
  if (b.dq.data != nullptr) {
    const FlashRows k = gathered(rows_from(b.k, s.key_begin), keys, s.head_dim, scratch.k_rows);
    const FlashOutput dq = made_in(b.dq, scratch.dq, s.head_dim);
    multiply_seen<false>(s, {scratch.ds, width, k.data, k.stride, dq.data, dq.stride, s.queries, keys, false, nullptr}, s.head_dim,
                         true);
    if (b.dq.storage != FlashStorage::f32) put_rows({dq.data, dq.stride}, s.queries, s.head_dim, b.dq);
  }
  if (b.dk.data != nullptr) {
    const FlashRows rows = gathered(b.q, s.queries, s.head_dim, scratch.q_rows);
    multiply_seen<true>(s,
                        {scratch.ds, width, rows.data, rows.stride, row_of(b.dk, row), b.dk.stride, keys, s.queries, add, nullptr},
                        s.head_dim, false);
  }
  if (b.dv.data != nullptr && flows) {
    const FlashRows d_o = gathered(b.d_o, s.queries, s.value_dim, scratch.d_o_rows);
    multiply_seen<true>(s, {scratch.p, width, d_o.data, d_o.stride, row_of(b.dv, row), b.dv.stride, keys, s.queries, add, nullptr},
                        s.value_dim, false);
  }
}

void small_forward(const FlashForwardBlock& b) {
  const std::int64_t vectors = whole_vectors(b.shape.key_end - b.shape.key_begin);
  if (vectors <= 1)
    forward<1>(b);
  else if (vectors == 2)
    forward<2>(b);
  else if (vectors == 3)
    forward<3>(b);
  else
    forward<4>(b);
}

void small_backward(const FlashBackwardBlock& b, bool add) {
  const std::int64_t vectors = whole_vectors(b.shape.key_end - b.shape.key_begin);
  if (vectors <= 1)
    backward<1>(b, add);
  else if (vectors == 2)
    backward<2>(b, add);
  else if (vectors == 3)
    backward<3>(b, add);
  else
    backward<4>(b, add);
}

}  // namespace

extern const AttentionSmallKernels attention_small_kernels;
const AttentionSmallKernels attention_small_kernels{small_forward, small_backward};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
