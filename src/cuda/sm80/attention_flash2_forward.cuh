// FlashAttention-2, forward (Dao, arXiv 2307.08691, algorithm 1) on mma.sync: a thread block has a block of queries, its warps
// split the rows, and keys and values pass through shared memory. The output is not normalised until the end, and rescaled only
// where the maximum of a row has grown by more than 2^8, so that nearly all blocks of keys skip it.
#pragma once

#include "cuda/common/attention_rows.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace everglow::cuda {

/// Sizes for head dimensions of up to `columns`. A warp with 32 rows reads each element of K and V from shared memory for 32
/// products, which is what keeps 128 bytes a clock from being the limit; 256 columns leave registers for 16 rows only.
template <class Storage, int head_columns>
struct FlashForward {
  using T = Storage;
  using Tile = SharedTile<T, head_columns>;
  static constexpr int columns = head_columns;
  static constexpr int parts = columns <= 128 ? 2 : 1;  // 16-row parts of a warp
  static constexpr int warps = columns <= 128 ? 4 : 8, threads = warps * 32;
  static constexpr int warp_rows = 16 * parts, rows = warps * warp_rows;
  static constexpr int keys = 64;
  static constexpr int stages = columns <= 128 ? 2 : 1;
  static constexpr int blocks_per_sm = columns == 64 ? 3 : columns == 128 ? 2 : 1;
  static constexpr uint32_t q_bytes = rows * Tile::row_bytes, kv_bytes = keys * Tile::row_bytes;
  static constexpr uint32_t shared_bytes = q_bytes + 2 * stages * kv_bytes;
};

/// What a forward run needs beside AttentionParams.
struct FlashForwardGrid {
  int blocks = 0;         // blocks of queries of a sequence
  int heads_at_once = 1;  // (batch, head) pairs whose blocks are handed out together, the last ones first
  int splits = 1;         // parts of the keys
  // Where splits > 1, for each thread block: what its rows have before the division, and their maxima (times log2 e) and sums.
  float* sums = nullptr;        // [B, Hq, blocks, splits, rows, columns]
  float* statistics = nullptr;  // [B, Hq, blocks, splits, rows, 2]
};

/// The place of a thread block: the longest blocks of a causal mask come first, and heads in groups whose keys fit into L2.
struct FlashPlace {
  int b, h, block, split;
};
__device__ inline FlashPlace flash_place(const AttentionParams& p, const FlashForwardGrid& grid) {
  const int pairs = p.batch * p.heads, per_group = grid.heads_at_once * grid.blocks;
  const int index = static_cast<int>(blockIdx.x) / grid.splits, group = index / per_group, rest = index % per_group;
  const int heads = min(grid.heads_at_once, pairs - group * grid.heads_at_once);
  const int pair = group * grid.heads_at_once + rest % heads;
  return {pair / p.heads, pair % p.heads, grid.blocks - 1 - rest / heads, static_cast<int>(blockIdx.x) % grid.splits};
}

/// One warp's rows: 16 x 8 parts of the output, and maximum and sum of each row that this lane holds. Sums are of this lane's
/// columns alone until the end.
template <class C>
struct FlashOutput {
  float o[C::parts][C::columns / 8][4];
  float top[C::parts][2], sum[C::parts][2];
};

template <class C>
using FlashScores = float[C::parts][C::keys / 8][4];

/// s = Q Kᵀ of this warp's rows and all keys of a block.
template <class C>
__device__ __forceinline__ void flash_products(FlashScores<C>& s, uint32_t q_place, uint32_t k_place) {
  using T = typename C::T;
  using Tile = typename C::Tile;
#pragma unroll
  for (int d = 0; d < C::columns / 16; ++d) {
    uint32_t a[C::parts][4];
#pragma unroll
    for (int m = 0; m < C::parts; ++m) ptx::load_matrices(a[m], Tile::step(q_place, m, d));
#pragma unroll
    for (int n = 0; n < C::keys / 16; ++n) {
      uint32_t b[4];
      ptx::load_matrices(b, Tile::step(k_place, n, d));
#pragma unroll
      for (int m = 0; m < C::parts; ++m) ptx::mma_pair<T>(s[m][2 * n], s[m][2 * n + 1], a[m], b, d == 0);
    }
  }
}

/// o += P V, with P rounded to the storage type.
template <class C>
__device__ __forceinline__ void flash_values(FlashOutput<C>& out, const FlashScores<C>& p, uint32_t v_place) {
  using T = typename C::T;
  using Tile = typename C::Tile;
#pragma unroll
  for (int j = 0; j < C::keys / 16; ++j) {
    uint32_t a[C::parts][4];
#pragma unroll
    for (int m = 0; m < C::parts; ++m) {
      a[m][0] = ptx::pack<T>(p[m][2 * j][0], p[m][2 * j][1]), a[m][1] = ptx::pack<T>(p[m][2 * j][2], p[m][2 * j][3]);
      a[m][2] = ptx::pack<T>(p[m][2 * j + 1][0], p[m][2 * j + 1][1]);
      a[m][3] = ptx::pack<T>(p[m][2 * j + 1][2], p[m][2 * j + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < C::columns / 16; ++n) {
      uint32_t b[4];
      ptx::load_matrices_transposed(b, Tile::step(v_place, j, n));
#pragma unroll
      for (int m = 0; m < C::parts; ++m) ptx::mma_pair<T>(out.o[m][2 * n], out.o[m][2 * n + 1], a[m], b, false);
    }
  }
}

/// Scores to exponentials 2^(factor (s - top)), whose sums are added up. `factor` turns differences of scores into powers of two.
template <class C>
__device__ __forceinline__ void flash_softmax(FlashOutput<C>& out, FlashScores<C>& s, float factor) {
  constexpr float slack = 8;  // how far above 1 an exponential may lie: 2^8 is far from the largest f16
  float top[C::parts][2];
  bool grows = false;
#pragma unroll
  for (int m = 0; m < C::parts; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < C::keys / 8; ++n) largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top[m][half] = largest;
      grows |= (largest - out.top[m][half]) * factor > slack;
    }
  if (__any_sync(0xffffffffU, grows)) {
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = fmaxf(top[m][half], __shfl_xor_sync(0xffffffffU, top[m][half], 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
        largest = fmaxf(largest, out.top[m][half]);
        const float shift = largest == -INFINITY ? 0 : (out.top[m][half] - largest) * factor;
        const float shrink = ptx::exp2_approx(shift);
        out.top[m][half] = largest, out.sum[m][half] *= shrink;
#pragma unroll
        for (int n = 0; n < C::columns / 8; ++n) out.o[m][n][2 * half] *= shrink, out.o[m][n][2 * half + 1] *= shrink;
      }
  }
#pragma unroll
  for (int m = 0; m < C::parts; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = out.top[m][half] == -INFINITY ? 0 : out.top[m][half] * factor;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < C::keys / 8; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[m][n][e] = ptx::exp2_approx(fmaf(s[m][n][e], factor, -shift));
          sum += s[m][n][e];
        }
      out.sum[m][half] += sum;
    }
}

/// The masks and options of one thread block.
template <class C>
struct FlashMask {
  const AttentionParams& p;
  const AttentionSequence& s;
  int row, lane;  // first query of this warp

  __device__ int query(int m, int half) const { return row + 16 * m + 8 * half + (lane >> 2); }
  /// Whether the warp sees all, or none, of the keys [key, key + C::keys).
  __device__ bool all(int key) const {
    return key + C::keys <= end_key(p, s, row) && key >= begin_key(p, s, row + C::warp_rows - 1);
  }
  __device__ bool none(int key) const {
    return key >= end_key(p, s, row + C::warp_rows - 1) || key + C::keys <= begin_key(p, s, row) || row >= s.queries;
  }
  /// -inf where a query does not see a key.
  __device__ __forceinline__ void apply(FlashScores<C>& x, int key) const {
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = query(m, half), column = key + 2 * (lane & 3);
        const int begin = begin_key(p, s, i) - column, end = end_key(p, s, i) - column;
#pragma unroll
        for (int n = 0; n < C::keys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * n + e < begin || 8 * n + e >= end) x[m][n][2 * half + e] = -INFINITY;
      }
  }
  /// Scores with all options, times log2 e.
  __device__ __forceinline__ void score(FlashScores<C>& x, const AttentionOptions<typename C::T>& options, int key) const {
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = query(m, half), begin = begin_key(p, s, i), end = i < s.queries ? end_key(p, s, i) : 0;
#pragma unroll
        for (int n = 0; n < C::keys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = key + 8 * n + 2 * (lane & 3) + e;
            float& value = x[m][n][2 * half + e];
            float bend;
            value = j >= begin && j < end ? options.score(p, value, i, j, bend) : -INFINITY;
          }
      }
  }
  __device__ __forceinline__ void drop(FlashScores<C>& x, const AttentionOptions<typename C::T>& options, int key) const {
#pragma unroll
    for (int m = 0; m < C::parts; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll 1
        for (int n = 0; n < C::keys / 8; ++n) {
          bool keep[2];
          options.keeps_pair(p, query(m, half), key + 8 * n + 2 * (lane & 3), keep);
#pragma unroll
          for (int c = 0; c < C::keys / 8; ++c)
            if (c == n) {
              if (!keep[0]) x[m][c][2 * half] = 0;
              if (!keep[1]) x[m][c][2 * half + 1] = 0;
            }
        }
  }
  /// Adds what is not finite in V to the rows that see it, so that it can then be read as 0: the product with a probability of 0
  /// would bring NaN to rows that do not see the key.
  __device__ __forceinline__ void add_not_finite(FlashOutput<C>& out, uint32_t v_tile, int key) const {
#pragma unroll 1
    for (int j = 0; j < C::keys; ++j)
#pragma unroll
      for (int n = 0; n < C::columns / 8; ++n) {
        const uint32_t pair = C::Tile::read(v_tile, j, n, lane & 3);
        if (C::Tile::not_finite(pair) == 0) continue;
#pragma unroll
        for (int m = 0; m < C::parts; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int i = query(m, half);
            const bool sees = key + j >= begin_key(p, s, i) && key + j < end_key(p, s, i);
            out.o[m][n][2 * half] += sees ? C::Tile::not_finite_part(pair, 0) : 0;
            out.o[m][n][2 * half + 1] += sees ? C::Tile::not_finite_part(pair, 1) : 0;
          }
      }
  }
};

/// Writes the rows of a warp, through the shared memory of its own rows of Q, so that stores are of 16 bytes. Rows that see no key
/// are 0.
template <class C>
__device__ __forceinline__ void flash_store(const FlashOutput<C>& out, const FlashMask<C>& mask, const AttentionParams& p,
                                            const FlashPlace& at, uint32_t q_tile) {
  using T = typename C::T;
  using Tile = typename C::Tile;
  const AttentionSequence& s = mask.s;
  const int local = static_cast<int>(threadIdx.x) / 32 * C::warp_rows;
  const int begin = begin_seeing(p, s), end = end_seeing(p, s);
  __syncwarp();  // all lanes have read their rows of Q
#pragma unroll
  for (int m = 0; m < C::parts; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = out.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      const int i = mask.query(m, half);
      const bool none = i < begin || i >= end || sum == 0;
      const float share = none ? 0 : p.kept / sum;
      if (p.lse.data != nullptr && (mask.lane & 3) == 0 && i < s.all_queries) {
        const float top = out.top[m][half] * (p.general ? ln_2 : p.scale);
        p.lse.data[at.b * p.lse.batch + at.h * p.lse.head + (s.first_query + i) * p.lse.row] = none ? -INFINITY : top + logf(sum);
      }
#pragma unroll
      for (int n = 0; n < C::columns / 8; ++n) {
        const float low = none ? 0 : out.o[m][n][2 * half] * share, high = none ? 0 : out.o[m][n][2 * half + 1] * share;
        Tile::write(q_tile, local + 16 * m + 8 * half + (mask.lane >> 2), n, mask.lane & 3, ptx::pack<T>(low, high));
      }
    }
  __syncwarp();
  T* o = static_cast<T*>(p.o.data) + at.b * p.o.batch + at.h * p.o.head;
  constexpr int pieces = C::columns / 8;
#pragma unroll 1
  for (int piece = mask.lane; piece < C::warp_rows * pieces; piece += 32) {
    const int r = piece / pieces, i = mask.row + r;
    if (i < s.all_queries)
      Tile::store_piece(o + static_cast<int64_t>(s.first_query + i) * p.o.row, piece % pieces, p.value_dim, p.o.aligned,
                        Tile::read_piece(q_tile, local + r, piece % pieces));
  }
}

/// Slot of a thread block among the parts of the keys.
__device__ inline int64_t flash_slot(const FlashForwardGrid& grid, int pair, int block, int split) {
  return (static_cast<int64_t>(pair) * grid.blocks + block) * grid.splits + split;
}
template <class C>
__device__ __forceinline__ void flash_store_part(const FlashOutput<C>& out, const FlashForwardGrid& grid, const FlashPlace& at,
                                                 int heads, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, local = static_cast<int>(threadIdx.x) / 32 * C::warp_rows + (lane >> 2);
  const int64_t slot = flash_slot(grid, at.b * heads + at.h, at.block, at.split) * C::rows;
#pragma unroll
  for (int m = 0; m < C::parts; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = slot + local + 16 * m + 8 * half;
      float sum = out.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      if ((lane & 3) == 0) reinterpret_cast<float2*>(grid.statistics)[row] = {out.top[m][half] * factor, sum};
#pragma unroll
      for (int n = 0; n < C::columns / 8; ++n)
        *reinterpret_cast<float2*>(grid.sums + row * C::columns + 8 * n + 2 * (lane & 3)) = {out.o[m][n][2 * half],
                                                                                             out.o[m][n][2 * half + 1]};
    }
}

/// Adds the parts of the keys in their order, each times 2^(its maximum - the highest); one warp a query.
template <class C>
__global__ void __launch_bounds__(256)
    flash2_add_parts(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashForwardGrid grid) {
  using T = typename C::T;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
  if (row >= static_cast<int64_t>(p.batch) * p.heads * p.queries) return;
  const int i = static_cast<int>(row % p.queries), pair = static_cast<int>(row / p.queries), b = pair / p.heads, h = pair % p.heads;
  const AttentionSequence s = attention_sequence(p, b);
  if (i >= s.all_queries) return;
  const auto part = [&](int split) { return flash_slot(grid, pair, i / C::rows, split) * C::rows + i % C::rows; };
  float top = -INFINITY, sum = 0, o[C::columns / 32] = {};
  for (int split = 0; split < grid.splits; ++split) top = fmaxf(top, grid.statistics[2 * part(split)]);
  for (int split = 0; split < grid.splits; ++split) {
    const float* const statistics = grid.statistics + 2 * part(split);
    const float shrink = statistics[0] == -INFINITY ? 0 : ptx::exp2_approx(statistics[0] - top);
    sum += shrink * statistics[1];
#pragma unroll
    for (int e = 0; e < C::columns / 32; ++e) o[e] += shrink * grid.sums[part(split) * C::columns + 32 * e + lane];
  }
  const bool none = i < begin_seeing(p, s) || i >= end_seeing(p, s) || sum == 0;
  const float share = none ? 0 : p.kept / sum;
  T* const to = static_cast<T*>(p.o.data) + b * p.o.batch + static_cast<int64_t>(s.first_query + i) * p.o.row + h * p.o.head;
#pragma unroll
  for (int e = 0; e < C::columns / 32; ++e)
    if (32 * e + lane < p.value_dim) to[32 * e + lane] = static_cast<T>(none ? 0 : o[e] * share);
  if (p.lse.data != nullptr && lane == 0)
    p.lse.data[b * p.lse.batch + h * p.lse.head + (s.first_query + i) * p.lse.row] = none ? -INFINITY : top * ln_2 + logf(sum);
}

template <class C>
__device__ TileSource<typename C::T> flash_source(const AttentionTensor& t, int b, int h, int first, int width) {
  return {static_cast<const typename C::T*>(t.data) + b * t.batch + h * t.head + first * t.row, t.row, 0, 0, width, t.aligned};
}

/// All keys that the queries of one thread block see.
template <class C, bool general>
__device__ __forceinline__ void flash_forward_block(const AttentionParams& p, const FlashForwardGrid& grid, const FlashPlace& at,
                                                    const AttentionSequence& s, uint32_t shared) {
  using T = typename C::T;
  using Tile = typename C::Tile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, first = at.block * C::rows;
  const FlashMask<C> mask{p, s, first + warp * C::warp_rows, lane};
  const AttentionOptions<T> options(p, s, at.b, at.h);
  const float factor = general ? 1 : p.scale * log2_e;
  const uint32_t q_tile = shared, kv_tiles = shared + C::q_bytes;
  TileSource<T> q = flash_source<C>(p.q, at.b, at.h, s.first_query, p.head_dim);
  TileSource<T> k = flash_source<C>(p.k, at.b, at.h / p.group, s.first_key, p.head_dim);
  TileSource<T> v = flash_source<C>(p.v, at.b, at.h / p.group, s.first_key, p.value_dim);
  q.end_row = s.queries, k.end_row = v.end_row = s.keys;
  const int last = min(first + C::rows, s.queries) - 1, seen = begin_key(p, s, first) / C::keys;
  const int count = last < first ? 0 : max(0, (end_key(p, s, last) + C::keys - 1) / C::keys - seen);
  const int begin = seen + count * at.split / grid.splits, end = seen + count * (at.split + 1) / grid.splits;
  FlashOutput<C> out;
#pragma unroll
  for (int m = 0; m < C::parts; ++m) {
    out.top[m][0] = out.top[m][1] = -INFINITY, out.sum[m][0] = out.sum[m][1] = 0;
#pragma unroll
    for (int n = 0; n < C::columns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out.o[m][n][e] = 0;
  }
  const auto k_tile_of = [&](int n) { return kv_tiles + (C::stages == 2 ? n & 1 : 0) * 2 * C::kv_bytes; };
  const auto load_keys = [&](int n) { Tile::template load<C::keys, C::threads, general>(k_tile_of(n), k, n * C::keys); };
  const auto load_values = [&](int n) {
    Tile::template load<C::keys, C::threads, general>(k_tile_of(n) + C::kv_bytes, v, n * C::keys);
  };
  const auto clean_values = [&](int n) {  // what this thread copied has arrived; a barrier of the block either way
    const int key = n * C::keys;
    const uint32_t v_tile = k_tile_of(n) + C::kv_bytes;
    const bool cut = key + C::keys > end_key(p, s, first) || key < begin_key(p, s, last);
    if (!cut) return __syncthreads();
    if (__syncthreads_or(Tile::template copied_not_finite<C::keys, C::threads>(v_tile)) == 0) return;
    mask.add_not_finite(out, v_tile, key);
    __syncthreads();
    Tile::template make_finite<C::keys, C::threads>(v_tile, [](int) {});
    __syncthreads();
  };

  Tile::template load<C::rows, C::threads, general>(q_tile, q, first);
  if (begin < end) load_keys(end - 1);
  if (C::stages == 2 && begin < end) load_values(end - 1);
  ptx::commit_copies();
  const uint32_t q_place = Tile::rows_first(q_tile + warp * C::warp_rows * Tile::row_bytes, lane);
  for (int n = end - 1; n >= begin; --n) {
    const int key = n * C::keys;
    const uint32_t k_tile = k_tile_of(n), v_tile = k_tile + C::kv_bytes;
    const bool works = !mask.none(key);
    ptx::wait_for_copies<0>();
    if (C::stages == 2) {
      clean_values(n);
      if (n > begin) load_keys(n - 1), load_values(n - 1);
    } else {
      __syncthreads();
      load_values(n);
    }
    ptx::commit_copies();
    FlashScores<C> x;
    if (works) flash_products<C>(x, q_place, Tile::columns_first(k_tile, lane));
    if (C::stages == 1) {
      ptx::wait_for_copies<0>();
      clean_values(n);
      if (n > begin) load_keys(n - 1);
      ptx::commit_copies();
    }
    if (!works) continue;
    if constexpr (general)
      mask.score(x, options, key);
    else if (!mask.all(key))
      mask.apply(x, key);
    flash_softmax<C>(out, x, factor);
    if (general && p.drops) mask.drop(x, options, key);
    flash_values<C>(out, x, Tile::rows_first(v_tile, lane));
  }
  ptx::wait_for_copies<0>();
  if (begin >= end) __syncthreads();  // no block of keys was waited for: copies of Q must not follow what is written there
  if (grid.splits > 1)
    flash_store_part<C>(out, grid, at, p.heads, factor);
  else
    flash_store<C>(out, mask, p, at, q_tile);
}

template <class C, bool general>
__global__ void __launch_bounds__(C::threads, C::blocks_per_sm)
    flash2_forward(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashForwardGrid grid) {
  extern __shared__ __align__(128) unsigned char shared[];
  const FlashPlace at = flash_place(p, grid);
  const AttentionSequence s = attention_sequence(p, at.b);
  if (at.block * C::rows >= s.all_queries) return;
  flash_forward_block<C, general>(p, grid, at, s, static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
}

}  // namespace everglow::cuda
