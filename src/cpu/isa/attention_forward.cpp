// FlashAttention-2 forward for blocks of queries (Dao, arXiv 2307.08691): scores of a key block, online softmax, o += P v, one
// division at the end. Queries lie side by side in the lanes of vectors, so that maximum and sum need no work across lanes.
#include "core/mutant.hpp"
#include "cpu/isa/attention_hidden.hpp"
#include "cpu/isa/attention_options.hpp"
#include "cpu/isa/attention_words.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

void put_lse(const FlashForwardBlock& b, std::int64_t first, vfloat value) {
  float buffer[lanes];
  store(buffer, value);
  for (int i = 0; i < lanes && first + i < b.shape.queries; ++i) b.lse[(first + i) * b.lse_stride] = buffer[i];
}

/// Scores p[keys, NV vectors] become exponentials; top and sum are the running maximum and sum, and what came before is to be
/// multiplied by `rescale`.
template <int NV>
void online_softmax(float* p, std::int64_t keys, float* tops, float* sums, float* rescale) {
  for (int v = 0; v < NV; ++v) {
    const vfloat top = load(tops + v * lanes);
    vfloat a = top, b = top;
    std::int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      a = vmax(a, load(p + (j * NV + v) * lanes));
      b = vmax(b, load(p + ((j + 1) * NV + v) * lanes));
    }
    if (j < keys) a = vmax(a, load(p + (j * NV + v) * lanes));
    const vfloat higher = vmax(a, b);
    const vfloat shift = higher == -infinity() ? vfloat{} : higher;  // no key yet: exp(-inf - 0) is 0, as it must be
    const vfloat factor = mutant("attention.rescale") ? splat(1) : vexp(top - shift);
    vfloat total = load(sums + v * lanes) * factor;
    for (j = 0; j < keys; ++j) {
      const vfloat e = vexp(load(p + (j * NV + v) * lanes) - shift);
      total += e;
      store(p + (j * NV + v) * lanes, e);
    }
    store(rescale + v * lanes, factor), store(tops + v * lanes, higher), store(sums + v * lanes, total);
  }
}

/// Keys [key, key + keys), gathered for all blocks of queries that share them.
struct KeyTile {
  StoredRows stored_k;
  FlashRows k, v;  // k only where it is not read as it is stored
  std::int64_t key, keys, value_dim;
  bool looked = false;
  RowSet rows = 0;

  /// The values that are not finite. Only tiles with hidden pairs ask.
  RowSet not_finite() {
    if (!looked) rows = rows_not_finite(v, keys, value_dim), looked = true;
    return rows;
  }
};

/// The parts of scratch of one block of queries among those that share the keys.
template <int NV>
struct Block {
  std::int64_t first;  // query
  Sight<NV> sight;
  float *q, *o, *top, *sum;
  bool started;

  void begin(const FlashForwardBlock& b, std::int64_t index, std::int64_t step) {
    first = index * step, started = false;
    sight.set(b.shape, first);
    q = b.scratch.q + index * b.shape.head_dim * block_queries, o = b.scratch.o + index * b.shape.value_dim * block_queries;
    top = b.scratch.top + index * block_queries, sum = b.scratch.sum + index * block_queries;
    for (int v = 0; v < NV; ++v) store(top + v * lanes, -infinity()), store(sum + v * lanes, vfloat{});
    pack_columns<NV>(rows_from(b.q, first), b.shape.queries - first, b.shape.head_dim, b.shape.scale, q);
  }

  void take(const FlashForwardBlock& b, KeyTile& tile) {
    constexpr std::int64_t width = NV * lanes;
    const std::int64_t key = tile.key, keys = tile.keys;
    if (!sight.touches(key, key + keys)) return;
    float* const p = b.scratch.p;
    multiply_scores<NV>({tile.stored_k, tile.k, keys, b.shape.head_dim, b.shape.scale}, q, p);
    const TilePlace at{first, b.shape.queries - first, key, keys};
    bool hides = b.options.scores && adjust_scores<NV>(b.options, at, b.scratch, nullptr);
    if (!sight.covers(key, key + keys)) {
      hides = true;
      for (std::int64_t j = 0; j < keys; ++j)
        for (int i = 0; i < NV; ++i) {
          float* const score = p + j * width + i * lanes;
          store(score, sight.sees(key + j, i) ? load(score) : -infinity());
        }
    }
    const RowSet apart = hides ? tile.not_finite() : 0;
    HiddenPairs hidden;
    if (apart != 0) hidden.find(p, key, keys, sight);
    float rescale[width];
    online_softmax<NV>(p, keys, top, sum, rescale);
    if (b.options.drops) {
      keep_tile<NV>(b.options, at, b.scratch);
      for (std::int64_t i = 0; i < keys * width; i += lanes) store(p + i, load(p + i) * load(b.scratch.keep + i));
    }
    const Product means{tile.v.data, tile.v.stride,     p,    width,   o,
                        width,       b.shape.value_dim, keys, started, started ? rescale : nullptr};
    if (apart == 0)
      multiply<NV, true>(means);
    else
      multiply_apart<true>(means, NV, apart,
                           [&](std::int64_t, std::int64_t query, std::int64_t j) { return hidden.has(query, j); });
    started = true;
  }

  void finish(const FlashForwardBlock& b) const {
    float factor[NV * lanes];
    for (int v = 0; v < NV; ++v) {
      const vfloat total = load(sum + v * lanes);
      const vint none = total == 0.0F;
      store(factor + v * lanes, none ? vfloat{} : 1.0F / total);
      if (b.lse != nullptr)
        put_lse(b, first + v * lanes, none ? -infinity() : load(top + v * lanes) + dropped("attention.lse", vlog(total)));
    }
    if (!started)
      for (std::int64_t i = 0; i < b.shape.value_dim * NV * lanes; i += lanes) store(o + i, vfloat{});
    unpack_transposed<NV>(o, factor, b.shape.queries - first, b.shape.value_dim, rows_from(b.o, first));
  }
};

template <int NV>
void forward(const FlashForwardBlock& b, std::int64_t step) {
  const FlashShape& s = b.shape;
  const std::int64_t blocks = (s.queries + step - 1) / step;
  Block<NV> block[most_blocks];
  for (std::int64_t i = 0; i < blocks; ++i) block[i].begin(b, i, step);
  // Blocks of keys end at multiples of their size, so that sums have one order whichever queries share the keys.
  for (std::int64_t j = s.key_begin, next = 0; j < s.key_end; j = next) {
    next = (j / block_keys + 1) * block_keys;
    const std::int64_t keys = (next < s.key_end ? next : s.key_end) - j;
    const StoredRows stored_k = rows_from(b.k, j);
    const FlashRows k = in_words(stored_k, s.head_dim) ? FlashRows{} : gathered(stored_k, keys, s.head_dim, b.scratch.k_rows);
    const FlashRows v = gathered(rows_from(b.v, j), keys, s.value_dim, b.scratch.v_rows);
    KeyTile tile{stored_k, k, v, j, keys, s.value_dim};
    for (std::int64_t i = 0; i < blocks; ++i) block[i].take(b, tile);
  }
  for (std::int64_t i = 0; i < blocks; ++i) block[i].finish(b);
}

void forward_blocks(const FlashForwardBlock& b, std::int64_t step) {
  const std::int64_t vectors = ((b.shape.queries < step ? b.shape.queries : step) + lanes - 1) / lanes;
  if (vectors == 1)
    forward<1>(b, step);
  else if (vectors == 2)
    forward<2>(b, step);
  else if (vectors == 3)
    forward<3>(b, step);
  else
    forward<4>(b, step);
}

/// One query with its keys in scratch.p: for a handful of queries the lanes of `forward` would stay empty. S: how q, k, v are
/// stored.
template <class S>
struct OneQuery {
  const FlashForwardBlock& b;
  const S *q, *k, *v;
  std::int64_t query, first, end;

  OneQuery(const FlashForwardBlock& block, std::int64_t index)
      : b(block),
        q(static_cast<const S*>(b.q.data) + index * b.q.stride),
        k(static_cast<const S*>(b.k.data)),
        v(static_cast<const S*>(b.v.data)),
        query(index),
        first(b.shape.first_key[index]),
        end(b.shape.end_key[index]) {}

  /// Scores of the `lanes` keys from j on; keys beyond the end repeat the last one.
  vfloat scores(std::int64_t j) const {
    const S* key[lanes];
    vfloat sum[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      key[i] = k + (j + i < end ? j + i : end - 1) * b.k.stride;
      sum[i] = vfloat{};
    }
    const std::int64_t d = b.shape.head_dim;
    std::int64_t e = 0;
    for (; e + lanes <= d; e += lanes) {
      const vfloat x = load(q + e);
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) sum[i] += x * load(key[i] + e);
    }
    if (e < d) {
      const int left = static_cast<int>(d - e);
      const vfloat x = load_part(q + e, left);
      for (int i = 0; i < lanes; ++i) sum[i] += x * load_part(key[i] + e, left);
    }
    return sums_of(sum) * b.shape.scale;
  }

  /// o[columns of NV vectors] = factor · Σ p[j] v[j]. `part` > 0: the only vector has that many columns. Hides: values whose
  /// probability is -0 are left out.
  template <int NV, bool Hides>
  void mean(float factor, float* o, std::int64_t column, int part = 0) const {
    vfloat even[NV], odd[NV];
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i) even[i] = vfloat{}, odd[i] = vfloat{};
    const S* row = v + first * b.v.stride + column;
    const auto add = [this, part](vfloat(&sum)[NV], std::int64_t key, const S* values) {
      const float weight = b.scratch.p[key];
      if (Hides && is_hidden(weight)) return;
#pragma GCC unroll 4
      for (int i = 0; i < NV; ++i) sum[i] += weight * (part > 0 ? load_part(values + i * lanes, part) : load(values + i * lanes));
    };
    std::int64_t j = first;
    for (; j + 2 <= end; j += 2, row += 2 * b.v.stride) add(even, j, row), add(odd, j + 1, row + b.v.stride);
    if (j < end) add(even, j, row);
    for (int i = 0; i < NV; ++i) {
      const vfloat value = (even[i] + odd[i]) * factor;
      if (part > 0)
        store_part(o + column, value, part);
      else
        store(o + column + i * lanes, value);
    }
  }

  template <bool Hides>
  void means(float factor, float* o) const {
    const std::int64_t width = b.shape.value_dim;
    std::int64_t column = 0;
    for (; column + block_queries <= width; column += block_queries) mean<4, Hides>(factor, o, column);
    for (; column + lanes <= width; column += lanes) mean<1, Hides>(factor, o, column);
    if (column < width) mean<1, Hides>(factor, o, column, static_cast<int>(width - column));
  }

  /// Scores into scratch.p; their maximum.
  float highest_score() const {
    float* const p = b.scratch.p;
    vfloat top = -infinity();
    for (std::int64_t j = first; j < end; j += lanes) {
      vfloat score = scores(j);
      if (b.options.scores) score = adjusted_row(b.options, query, j, end, score);
      if (j + lanes <= end) {
        store(p + j, score);
      } else {
        store_part(p + j, score, static_cast<int>(end - j));
        score = load_part(p + j, static_cast<int>(end - j), -__builtin_inff());
      }
      top = vmax(top, score);
    }
    return max_lanes(top);
  }
  /// A weight is 0 or more; -0 marks a key that the bias hides, which takes no part whatever its value is.
  static bool is_hidden(float weight) { return weight == 0 && __builtin_signbit(weight) != 0; }

  /// Exponentials into scratch.p; their sum.
  float exponentials(vfloat shift) const {
    float* const p = b.scratch.p;
    vfloat sum{};
    for (std::int64_t j = first; j < end; j += lanes) {
      const int left = static_cast<int>(end - j < lanes ? end - j : lanes);
      const vfloat score = left == lanes ? load(p + j) : load_part(p + j, left, -__builtin_inff());
      vfloat e = vexp(score - shift);
      if (b.options.bias.data != nullptr && !mutant("attention.hidden_keys_of_one_query")) e = score == -infinity() ? -vfloat{} : e;
      sum += e;
      if (left == lanes)
        store(p + j, e);
      else
        store_part(p + j, e, left);
    }
    return sum_lanes(sum);
  }

  void run() const {
    const FlashShape& s = b.shape;
    const float highest = highest_score();
    const vfloat shift = splat(highest == -__builtin_inff() ? 0.0F : highest);
    const float total = exponentials(shift), factor = b.partial != nullptr ? 1 : total == 0 ? 0 : 1 / total;
    if (b.options.drops) {
      keep_row(b.options, query, first, end - first, b.scratch.keep);
      for (std::int64_t j = first; j < end; ++j) b.scratch.p[j] *= b.scratch.keep[j - first];
    }
    if (b.partial != nullptr) {
      b.partial[2 * query] = highest, b.partial[2 * query + 1] = total;
    } else if (b.lse != nullptr) {
      float buffer[lanes];
      store(buffer, shift + vlog(splat(total)));
      b.lse[query * b.lse_stride] = buffer[0];
    }
    const StoredOutput to = rows_from(b.o, query);
    float* const o = made_in(to, b.scratch.o, s.value_dim).data;
    if (b.options.bias.data != nullptr)
      means<true>(factor, o);
    else
      means<false>(factor, o);
    if (to.storage != FlashStorage::f32) put_rows({o, s.value_dim}, 1, s.value_dim, to);
  }
};

void forward_rows(const FlashForwardBlock& b) {
  with_rows(b.q, [&]<class S>(const Rows<S>&) {
    for (std::int64_t query = 0; query < b.shape.queries; ++query) OneQuery<S>(b, query).run();
  });
}

}  // namespace

extern const AttentionForwardKernels attention_forward_kernels;
const AttentionForwardKernels attention_forward_kernels{lanes,     block_queries,  block_keys,   most_blocks,
                                                        lanes / 2, forward_blocks, forward_rows, put_rows};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
