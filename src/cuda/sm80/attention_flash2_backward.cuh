// FlashAttention-2, backward (Dao, arXiv 2307.08691, algorithm 2) on mma.sync: a thread block has a block of keys, whose gradients
// stay in registers, and passes over the queries that see them, and over the query heads that share the key head, in a fixed order.
// Scores are made transposed (keys x queries). Up to 64 columns P and dS are then operands as they stand, and dQ is made one block
// of queries later, so that there is one barrier for each; above, warps that share keys hand each other P and dS in shared memory.
#pragma once

#include "cuda/common/attention_rows.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace everglow::cuda {

/// Sizes for head dimensions of up to `columns`.
template <class Storage, int head_columns>
struct FlashBackward {
  using T = Storage;
  using Tile = SharedTile<T, head_columns>;
  using ScoreTile = SharedTile<T, 64>;  // [keys, queries]
  static constexpr int columns = head_columns;
  static constexpr int warps = columns == 64 ? 4 : 8, threads = warps * 32;
  static constexpr int parts = 2;  // 16-key parts of a warp: each element from shared memory is then in 32 products
  /// Warps that share keys: they split the queries for the scores, hand these to each other, and split the columns of dK and dV.
  static constexpr int column_groups = columns / 64;
  static constexpr bool shares = column_groups > 1;
  static constexpr int warp_keys = 16 * parts, keys = warps / column_groups * warp_keys;
  static constexpr int queries = 64;
  static constexpr int span = columns == 256 ? 16 : 32;  // queries whose scores are in registers at once
  static constexpr int warp_columns = columns / column_groups;
  static constexpr int blocks_per_sm = columns == 64 ? 2 : 1;
  static constexpr uint32_t kv_bytes = keys * Tile::row_bytes, q_bytes = queries * Tile::row_bytes;
  static constexpr uint32_t score_bytes = keys * ScoreTile::row_bytes, statistic_bytes = 2 * queries * sizeof(float);
  static constexpr uint32_t stage_bytes = 2 * q_bytes + statistic_bytes;
  static constexpr uint32_t shared_bytes(int stages) { return 2 * kv_bytes + 2 * score_bytes + stages * stage_bytes; }
};

/// What a backward run needs beside AttentionParams.
struct FlashBackwardGrid {
  int blocks = 0;          // blocks of keys of a sequence
  int padded_queries = 0;  // a multiple of 64
  int stages = 2;          // buffers for queries
  float* lse = nullptr;    // [B, Hq, padded_queries] LSE log2 e; +inf for a query that has no part
  float* delta = nullptr;  // [B, Hq, padded_queries] sum of dO o less the gradient of LSE
  float* dq = nullptr;     // [B, Hq, padded_queries / 16, columns / 8, 32, 4] sums, as mma leaves them; null: no dQ
  int* turns = nullptr;    // [B, Hq, padded_queries / 64] key blocks that have been added to dQ, in order; null: any order
  int* ticket = nullptr;   // [1] thread blocks that have begun: the order in which they wait for each other
};

template <class C>
struct FlashGradients {
  float dk[C::parts][C::warp_columns / 8][4], dv[C::parts][C::warp_columns / 8][4];
};
/// 16-key parts x 8-query parts.
template <class C>
using FlashTransposed = float[C::parts][C::span / 8][4];
/// The same, rounded: [..][0] of the first row, [..][1] of the one 8 keys on.
template <class C>
using FlashOperand = uint32_t[C::parts][C::span / 8][2];

/// x = keys queriesᵀ over all columns; between(d) is called after the products of step d.
template <class C, class Between>
__device__ __forceinline__ void flash_transposed_products(FlashTransposed<C>& x, uint32_t key_place, uint32_t query_place,
                                                          const Between& between) {
  using Tile = typename C::Tile;
#pragma unroll
  for (int d = 0; d < C::columns / 16; ++d) {
    uint32_t a[C::parts][4];
#pragma unroll
    for (int m = 0; m < C::parts; ++m) ptx::load_matrices(a[m], Tile::step(key_place, m, d));
#pragma unroll
    for (int n = 0; n < C::span / 16; ++n) {
      uint32_t b[4];
      ptx::load_matrices(b, Tile::step(query_place, n, d));
#pragma unroll
      for (int m = 0; m < C::parts; ++m) ptx::mma_pair<typename C::T>(x[m][2 * n], x[m][2 * n + 1], a[m], b, d == 0);
    }
    between(d);
  }
}

/// sum[keys, columns] += a[keys, 16 queries] b[16 queries, columns].
template <class C>
__device__ __forceinline__ void flash_add_product(float (&sum)[C::parts][C::warp_columns / 8][4], const uint32_t (&a)[C::parts][4],
                                                  uint32_t place, int queries16) {
#pragma unroll
  for (int n = 0; n < C::warp_columns / 16; ++n) {
    uint32_t b[4];
    ptx::load_matrices_transposed(b, C::Tile::step(place, queries16, n));
#pragma unroll
    for (int m = 0; m < C::parts; ++m) ptx::mma_pair<typename C::T>(sum[m][2 * n], sum[m][2 * n + 1], a[m], b, false);
  }
}

/// The same for an operand in registers, over `span` queries from 16 first on.
template <class C>
__device__ __forceinline__ void flash_add_products(float (&sum)[C::parts][C::warp_columns / 8][4], const FlashOperand<C>& x,
                                                   uint32_t place, int first) {
#pragma unroll
  for (int j = 0; j < C::span / 16; ++j) {
    uint32_t a[C::parts][4];
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
      a[m][0] = x[m][2 * j][0], a[m][1] = x[m][2 * j][1], a[m][2] = x[m][2 * j + 1][0], a[m][3] = x[m][2 * j + 1][1];
    flash_add_product<C>(sum, a, place, first + j);
  }
}

/// A block of queries of one head.
struct FlashStep {
  int index, head, query;
};

/// One thread block's work: a key block of one (batch, key head).
template <class C, bool general>
struct FlashBackwardBlock {
  using T = typename C::T;
  using Tile = typename C::Tile;
  using ScoreTile = typename C::ScoreTile;
  static constexpr int key_groups = C::warps / C::column_groups;
  const AttentionParams& p;
  const FlashBackwardGrid& grid;
  const AttentionSequence& s;
  int b, kv_head, block;
  uint32_t shared;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int key = block * C::keys;                        // first of the block
  int warp_row = warp % key_groups * C::warp_keys;  // first of this warp, counted in the block
  int column_group = warp / key_groups;
  int begin_queries = 0, end_queries = 0;  // that see any of the keys, in whole blocks
  float factor = general ? 1 : p.scale * log2_e;
  bool bends = true;  // gradients by the products, not by the scores

  __device__ uint32_t k_tile() const { return shared; }
  __device__ uint32_t v_tile() const { return shared + C::kv_bytes; }
  /// Two tiles of scores: dS of this and of the last block of queries, or, where warps share keys, dS and P of this one.
  __device__ uint32_t ds_tile(int index) const { return shared + 2 * C::kv_bytes + (C::shares ? 0 : index & 1) * C::score_bytes; }
  __device__ uint32_t p_tile() const { return shared + 2 * C::kv_bytes + C::score_bytes; }
  __device__ uint32_t q_tile(int index) const {
    return shared + 2 * C::kv_bytes + 2 * C::score_bytes + (index & (grid.stages - 1)) * C::stage_bytes;
  }
  __device__ uint32_t do_tile(int index) const { return q_tile(index) + C::q_bytes; }
  __device__ uint32_t statistics(int index) const { return q_tile(index) + 2 * C::q_bytes; }

  __device__ FlashStep after(FlashStep step) const {
    ++step.index, step.query += C::queries;
    if (step.query >= end_queries) step.query = begin_queries, ++step.head;
    return step;
  }

  __device__ TileSource<T> source(const AttentionTensor& t, int h, int first, int width) const {
    return {static_cast<const T*>(t.data) + b * t.batch + h * t.head + first * t.row, t.row, 0, 0, width, t.aligned};
  }
  __device__ __forceinline__ void load_keys() const {
    TileSource<T> k = source(p.k, kv_head, s.first_key, p.head_dim), v = source(p.v, kv_head, s.first_key, p.value_dim);
    k.end_row = v.end_row = s.keys;
    Tile::template load<C::keys, C::threads, general>(k_tile(), k, key);
    Tile::template load<C::keys, C::threads, general>(v_tile(), v, key);
  }
  __device__ __forceinline__ void load_queries(const FlashStep& step) const {
    const int thread = static_cast<int>(threadIdx.x);
    TileSource<T> q = source(p.q, step.head, s.first_query, p.head_dim);
    TileSource<T> d_o = source(p.d_o, step.head, s.first_query, p.value_dim);
    q.first_row = d_o.first_row = begin_seeing(p, s), q.end_row = end_seeing(p, s);
    d_o.end_row = p.d_o.data == nullptr ? 0 : q.end_row;
    if (p.d_o.data == nullptr) d_o.data = static_cast<const T*>(p.q.data);
    Tile::template load<C::queries, C::threads, general>(q_tile(step.index), q, step.query);
    Tile::template load<C::queries, C::threads, general>(do_tile(step.index), d_o, step.query);
    if (thread < 32) {
      const float* from = thread < 16 ? grid.lse : grid.delta;
      from += (static_cast<int64_t>(b) * p.heads + step.head) * grid.padded_queries + step.query + thread % 16 * 4;
      ptx::copy_16_async(statistics(step.index) + thread * 16, from, 16);
    }
  }
  /// Values of the queries 8 n + 2 (lane mod 4) and the next.
  __device__ __forceinline__ float2 statistic(uint32_t base, int n) const {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(base + (8 * n + 2 * (lane & 3)) * 4)
                 : "memory");
    return pair;
  }

  /// Whether each key of the warp is seen by all of the queries [query, query + n).
  __device__ bool all(int query, int n) const {
    const int first = key + warp_row, last = first + C::warp_keys - 1;
    return last < s.keys && query >= begin_query(p, s, last) && (p.left >= no_limit || query + n <= end_query(p, s, first));
  }

  /// Where some query does not see some key, what is not finite in Q and dO becomes 0 and LSE NaN: the keys that the query sees get
  /// NaN by their probabilities, and the others not by a product with 0. A barrier of the block either way.
  __device__ __forceinline__ void clean_queries(const FlashStep& step) const {
    const int last = min(key + C::keys, s.keys) - 1;
    const bool cut = step.query < begin_query(p, s, last) || (p.left < no_limit && step.query + C::queries > end_query(p, s, key));
    if (!cut) return __syncthreads();
    const uint32_t q = q_tile(step.index), d_o = do_tile(step.index);
    if (__syncthreads_or(Tile::template copied_not_finite<C::queries, C::threads>(q) ||
                         Tile::template copied_not_finite<C::queries, C::threads>(d_o)) == 0)
      return;
    const auto mark = [&](int row) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(statistics(step.index) + 4 * row), "f"(NAN) : "memory");
    };
    Tile::template make_finite<C::queries, C::threads>(q, mark);
    Tile::template make_finite<C::queries, C::threads>(d_o, mark);
    __syncthreads();
  }
  /// The same for K, once: queries that see such a key have LSE NaN by forward, and NaN in V brings NaN to dP.
  __device__ __forceinline__ void clean_keys() const {
    if (__syncthreads_or(Tile::template copied_not_finite<C::keys, C::threads>(k_tile())) == 0) return;
    Tile::template make_finite<C::keys, C::threads>(k_tile(), [&](int row) { Tile::write(v_tile(), row, 0, 0, 0x7FFF7FFFU); });
    __syncthreads();
  }

  /// One 16 x 8 part of products to probabilities, times the derivative of softcap and negative where dropout drops; `rounded` is
  /// what multiplies dO.
  template <bool masked>
  __device__ __forceinline__ void probability(float (&x)[4], uint32_t (&rounded)[2], const AttentionOptions<T>& options, int m,
                                              int query, float2 lse) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = key + warp_row + 16 * m + 8 * half + (lane >> 2), i = query + 2 * (lane & 3);
      const int begin = begin_query(p, s, j), end = j < s.keys ? end_query(p, s, j) : 0;
      float kept[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float value = x[2 * half + e], bend = 1;
        const bool sees = !masked || (i + e >= begin && i + e < end);
        if constexpr (general) value = sees ? options.score(p, value, i + e, j, bend) : 0;
        value = sees ? ptx::exp2_approx(fmaf(value, factor, e == 0 ? -lse.x : -lse.y)) : 0;
        kept[e] = value;
        if constexpr (general) {
          if (bends) value *= bend;
          if (p.drops && sees) {
            const bool keep = options.keeps(p, i + e, j);
            kept[e] = keep ? kept[e] * p.kept : 0, value = keep ? value : -value;
          }
        }
        x[2 * half + e] = value;
      }
      rounded[half] = ptx::pack<T>(kept[0], kept[1]);
    }
  }
  /// dS = P (dP - delta).
  template <bool masked>
  __device__ __forceinline__ float score_gradient(float weight, float dp, float delta) const {
    if (masked && weight == 0) return 0;  // where nothing is seen, dP may be NaN
    if (general && p.drops) dp = signbit(weight) ? 0 : dp * p.kept;
    return (general ? fabsf(weight) : weight) * (dp - delta);
  }
  template <bool masked>
  __device__ __forceinline__ void score_gradients(uint32_t (&rounded)[2], const float (&x)[4], const float (&dp)[4],
                                                  float2 delta) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rounded[half] = ptx::pack<T>(score_gradient<masked>(x[2 * half], dp[2 * half], delta.x),
                                   score_gradient<masked>(x[2 * half + 1], dp[2 * half + 1], delta.y));
  }
  __device__ __forceinline__ void put(uint32_t tile, const uint32_t (&x)[2], int m, int query8) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ScoreTile::write(tile, warp_row + 16 * m + 8 * half + (lane >> 2), query8, lane & 3, x[half]);
  }
  /// f(m, n) for the share of the 16 x 8 parts of scores that falls on step i of n steps.
  template <class F>
  __device__ static __forceinline__ void parts_of_step(int i, int steps, const F& f) {
    constexpr int wide = C::span / 8, all = C::parts * wide;
#pragma unroll
    for (int part = 0; part < all; ++part)
      if (part >= all * i / steps && part < all * (i + 1) / steps) f(part / wide, part % wide);
  }
  /// a of sum += a b, from a score tile, for the keys of this warp and the queries from 16 j.
  __device__ __forceinline__ void load_scores(uint32_t (&a)[C::parts][4], uint32_t tile, int j) const {
    const uint32_t place = ScoreTile::rows_first(tile + warp_row * ScoreTile::row_bytes, lane);
#pragma unroll
    for (int m = 0; m < C::parts; ++m) ptx::load_matrices(a[m], ScoreTile::step(place, m, j));
  }
  __device__ uint32_t keys_place(uint32_t tile) const { return Tile::rows_first(tile + warp_row * Tile::row_bytes, lane); }
  __device__ uint32_t queries_place(uint32_t tile, int query16) const {
    return Tile::columns_first(tile + query16 * 16 * Tile::row_bytes, lane);
  }

  /// Scores of `span` queries from 16 query16 on in the block, and what they add to dV and dK. P and dS are operands as they stand.
  template <bool masked>
  __device__ __forceinline__ void span_alone(FlashGradients<C>& sums, const FlashStep& step, int query16) const {
    const uint32_t q = q_tile(step.index), d_o = do_tile(step.index);
    const uint32_t lse = statistics(step.index) + 64 * query16, delta = lse + 4 * C::queries;
    const AttentionOptions<T> options(p, s, b, step.head);
    FlashTransposed<C> x, dp;
    FlashOperand<C> rounded;
    flash_transposed_products<C>(x, keys_place(k_tile()), queries_place(q, query16), [](int) {});
    parts_of_step(0, 1, [&](int m, int n) {
      probability<masked>(x[m][n], rounded[m][n], options, m, step.query + 16 * query16 + 8 * n, statistic(lse, n));
    });
    flash_add_products<C>(sums.dv, rounded, Tile::rows_first(d_o, lane), query16);
    flash_transposed_products<C>(dp, keys_place(v_tile()), queries_place(d_o, query16), [](int) {});
    parts_of_step(0, 1, [&](int m, int n) {
      score_gradients<masked>(rounded[m][n], x[m][n], dp[m][n], statistic(delta, n));
      put(ds_tile(step.index), rounded[m][n], m, 2 * query16 + n);
    });
    flash_add_products<C>(sums.dk, rounded, Tile::rows_first(q, lane), query16);
  }
  /// The same where warps share keys: each makes the scores of its queries, and adds to its columns what all queries give.
  template <bool masked>
  __device__ __forceinline__ void span_shared(FlashGradients<C>& sums, const FlashStep& step) const {
    const int query16 = column_group * (C::span / 16);
    const uint32_t q = q_tile(step.index), d_o = do_tile(step.index), columns = column_group * C::warp_columns / 64 * 128;
    const uint32_t lse = statistics(step.index) + 64 * query16, delta = lse + 4 * C::queries;
    const AttentionOptions<T> options(p, s, b, step.head);
    FlashTransposed<C> x, dp;
    flash_transposed_products<C>(x, keys_place(k_tile()), queries_place(q, query16), [](int) {});
    flash_transposed_products<C>(dp, keys_place(v_tile()), queries_place(d_o, query16), [&](int d) {
      parts_of_step(d, C::columns / 16, [&](int m, int n) {
        uint32_t rounded[2];
        probability<masked>(x[m][n], rounded, options, m, step.query + 16 * query16 + 8 * n, statistic(lse, n));
        put(p_tile(), rounded, m, 2 * query16 + n);
      });
    });
    parts_of_step(0, 1, [&](int m, int n) {
      uint32_t rounded[2];
      score_gradients<masked>(rounded, x[m][n], dp[m][n], statistic(delta, n));
      put(ds_tile(step.index), rounded, m, 2 * query16 + n);
    });
    __syncthreads();
#pragma unroll
    for (int j = 0; j < C::queries / 16; ++j) {
      uint32_t a[C::parts][4];
      load_scores(a, p_tile(), j);
      flash_add_product<C>(sums.dv, a, Tile::rows_first(d_o + columns, lane), j);
      load_scores(a, ds_tile(step.index), j);
      flash_add_product<C>(sums.dk, a, Tile::rows_first(q + columns, lane), j);
    }
    add_query_gradients(step);
  }
  template <bool masked>
  __device__ __forceinline__ void span(FlashGradients<C>& sums, const FlashStep& step, int query16) const {
    if constexpr (C::shares)
      span_shared<masked>(sums, step);
    else
      span_alone<masked>(sums, step, query16);
  }
  __device__ __forceinline__ void spans(FlashGradients<C>& sums, const FlashStep& step, const FlashStep& before) const {
    if (!C::shares && step.index > 0) add_query_gradients(before);
#pragma unroll
    for (int i = 0; i < (C::shares ? 1 : C::queries / C::span); ++i) {
      const int query16 = (C::shares ? column_group : i) * (C::span / 16);
      if constexpr (general)
        span<true>(sums, step, query16);
      else if (all(step.query + 16 * query16, C::span))
        span<false>(sums, step, query16);
      else
        span<true>(sums, step, query16);
    }
  }

  /// dQ of a block of queries += dS K, 32 queries x 32 columns at a time.
  __device__ __forceinline__ void add_query_gradients(const FlashStep& step) const {
    if (grid.dq == nullptr) return;
    constexpr int tasks = 2 * (C::columns / 32);
    const int64_t first = (static_cast<int64_t>(b) * p.heads + step.head) * grid.padded_queries + step.query;
    if (grid.turns != nullptr) wait_for_turn(step);
#pragma unroll
    for (int task = warp; task < tasks; task += C::warps) {
      const int half = task & 1, column = task / 2 * 32;
      const uint32_t ds_place = ScoreTile::columns_first(ds_tile(step.index), lane) ^ static_cast<uint32_t>(half << 6);
      const uint32_t k_place = (Tile::rows_first(k_tile(), lane) ^ static_cast<uint32_t>((column & 32) << 1)) + (column >> 6) * 128;
      float dq[2][4][4];
#pragma unroll
      for (int j = 0; j < C::keys / 16; ++j) {
        uint32_t a[2][4], k[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::load_matrices_transposed(a[i], ScoreTile::step(ds_place, j, i));
          ptx::load_matrices_transposed(k[i], Tile::step(k_place, j, i));
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < 2; ++n) ptx::mma_pair<T>(dq[m][2 * n], dq[m][2 * n + 1], a[m], k[n], j == 0);
      }
      float* const to = grid.dq + first * C::columns + (half * 2 * (C::columns / 8) + column / 8) * 128 + lane * 4;
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n) ptx::add_4(to + (m * (C::columns / 8) + n) * 128, dq[m][n]);
    }
    if (grid.turns != nullptr) end_turn(step);
  }
  __device__ int* turn(const FlashStep& step) const {
    return grid.turns + ((static_cast<int64_t>(b) * p.heads + step.head) * grid.padded_queries + step.query) / C::queries;
  }
  /// Key blocks add to dQ in ascending order: the bits are then the same in every run.
  __device__ __forceinline__ void wait_for_turn(const FlashStep& step) const {
    if (threadIdx.x == 0) {
      const int before = block - begin_key(p, s, step.query) / C::keys;
      int polls = 0;
      while (atomicAdd(turn(step), 0) < before)
        if (++polls == 1 << 26) {
          if (p.status != nullptr) atomicOr(p.status, status_waited);
          break;
        }
      __threadfence();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void end_turn(const FlashStep& step) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(turn(step), 1);
  }

  __device__ __forceinline__ void store(const AttentionTensor& t, const float (&sum)[C::parts][C::warp_columns / 8][4],
                                        uint32_t tile, int width, float times) const {
    if (t.data == nullptr) return;
    const int skip = column_group * C::warp_columns / 8;
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < C::warp_columns / 8; ++n)
          Tile::write(tile, warp_row + 16 * m + 8 * half + (lane >> 2), skip + n, lane & 3,
                      ptx::pack<T>(sum[m][n][2 * half] * times, sum[m][n][2 * half + 1] * times));
    __syncwarp();
    T* const to = static_cast<T*>(t.data) + b * t.batch + kv_head * t.head;
    constexpr int pieces = C::warp_columns / 8;
#pragma unroll 1
    for (int piece = lane; piece < C::warp_keys * pieces; piece += 32) {
      const int r = warp_row + piece / pieces, column = skip + piece % pieces, j = key + r;
      const uint4 words = j < s.keys ? Tile::read_piece(tile, r, column) : uint4{0, 0, 0, 0};
      if (j < s.all_keys) Tile::store_piece(to + static_cast<int64_t>(s.first_key + j) * t.row, column, width, t.aligned, words);
    }
  }

  __device__ __forceinline__ void run() {
    FlashGradients<C> sums;
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int n = 0; n < C::warp_columns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.dk[m][n][e] = 0, sums.dv[m][n][e] = 0;
    const int last = min(key + C::keys, s.keys) - 1;
    if (last >= key) {
      begin_queries = begin_query(p, s, key) / C::queries * C::queries;
      end_queries = max(begin_queries, end_query(p, s, last));
    }
    const int iterations = (end_queries - begin_queries + C::queries - 1) / C::queries * p.group;
    FlashStep step{0, kv_head * p.group, begin_queries}, before = step;
    if (iterations > 0) load_keys(), load_queries(step);
    ptx::commit_copies();
    while (step.index < iterations) {
      const FlashStep next = after(step);
      const auto load_next = [&] {
        if (next.index < iterations) load_queries(next);
        ptx::commit_copies();
      };
      ptx::wait_for_copies<0>();
      if (step.index == 0) clean_keys();
      clean_queries(step);
      if (grid.stages == 2) load_next();
      spans(sums, step, before);
      if (grid.stages == 1) {
        __syncthreads();
        load_next();
      }
      before = step, step = next;
    }
    ptx::wait_for_copies<0>();
    __syncthreads();
    if (!C::shares && iterations > 0) add_query_gradients(before);
    __syncthreads();
    store(p.dk, sums.dk, k_tile(), p.head_dim, p.scale);
    store(p.dv, sums.dv, v_tile(), p.value_dim, 1);
  }
};

template <class C, bool general>
__global__ void __launch_bounds__(C::threads, C::blocks_per_sm)
    flash2_backward(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashBackwardGrid grid) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int index;
  if (threadIdx.x == 0) index = grid.ticket != nullptr ? atomicAdd(grid.ticket, 1) : static_cast<int>(blockIdx.x);
  __syncthreads();
  const int pair = index / grid.blocks, b = pair / p.kv_heads;
  const AttentionSequence s = attention_sequence(p, b);
  if (index % grid.blocks * C::keys >= s.all_keys) return;
  FlashBackwardBlock<C, general> work{
      p, grid, s, b, pair % p.kv_heads, index % grid.blocks, static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  work.run();
}

}  // namespace everglow::cuda
