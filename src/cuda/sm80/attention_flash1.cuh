// FlashAttention (Dao et al., arXiv 2205.14135, algorithms 1 and 4) on mma.sync, as its authors laid it out: one thread block for a
// (batch, head) pair, blocks of keys outermost, 16 queries at a time inside; the warps split the keys, and what they have of a row
// meets in shared memory. The output in memory is renormalised after every block of keys. Kept for comparison.
#pragma once

#include "cuda/common/attention_rows.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace everglow::cuda {

template <class Storage, int head_columns, int warp_count, int block_keys>
struct Flash1 {
  using T = Storage;
  using Tile = SharedTile<T, head_columns>;
  static constexpr int columns = head_columns, warps = warp_count, threads = 32 * warps;
  static constexpr int keys = block_keys, warp_keys = keys / warps, rows = 16;
  static constexpr uint32_t kv_bytes = keys * Tile::row_bytes, q_bytes = rows * Tile::row_bytes;
  static constexpr uint32_t part_bytes = rows * columns * sizeof(float);  // of the rows, of one warp
};
/// Forward: keys and values stay in registers while all queries pass, so that their memory serves the parts of the output.
template <class Storage, int head_columns>
struct Flash1Forward : Flash1<Storage, head_columns, 4, 128> {
  using Base = Flash1<Storage, head_columns, 4, 128>;
  static constexpr uint32_t statistic_bytes = 2 * Base::warps * Base::rows * sizeof(float);
  static constexpr uint32_t shared_bytes(int) { return 2 * Base::kv_bytes + 2 * Base::q_bytes + 2 * statistic_bytes; }
  static_assert(2 * Base::warps * Base::part_bytes <= 2 * Base::kv_bytes, "two buffers of parts lie where the keys were");
};
template <class Storage, int head_columns>
struct Flash1Backward : Flash1<Storage, head_columns, head_columns / 16, head_columns> {
  using Base = Flash1<Storage, head_columns, head_columns / 16, head_columns>;
  static_assert(Base::warp_keys == 16, "a warp has one part of keys");
  static constexpr uint32_t statistic_bytes = 2 * Base::rows * sizeof(float);
  static constexpr uint32_t stage_bytes = 2 * Base::q_bytes + 128;  // and LSE and delta
  static constexpr uint32_t shared_bytes(int buffers) {
    return 2 * Base::kv_bytes + static_cast<uint32_t>(buffers) * Base::warps * Base::part_bytes + 2 * stage_bytes;
  }
};

struct Flash1Grid {
  int buffers = 2;         // backward: for parts of dQ; with two, those of the last queries are added beside the products of these
  int padded_queries = 0;  // a multiple of 64
  float* sums = nullptr;   // [B, Hq, padded_queries, columns] the output so far, or dQ
  float* top = nullptr;    // [B, Hq, padded_queries] maxima so far, times log2 e; backward: LSE log2 e
  float* sum = nullptr;    // [B, Hq, padded_queries] sums so far; backward: delta
};

/// Parts of rows [warps, 16, columns] in f32: part n of 8 columns of row r stands at n xor (r mod 8), against bank conflicts.
template <class C>
struct Flash1Parts {
  uint32_t base;

  __device__ static __forceinline__ uint32_t offset(int row, int part) {
    return static_cast<uint32_t>(row * C::columns * 4 + (part ^ (row & 7)) * 32);
  }
  __device__ __forceinline__ void put(int warp, int lane, const float (&x)[C::columns / 8][4]) const {
    const uint32_t to = base + warp * C::part_bytes + (lane & 3) * 8;
#pragma unroll
    for (int n = 0; n < C::columns / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to + offset((lane >> 2) + 8 * half, n)), "f"(x[n][2 * half]),
                     "f"(x[n][2 * half + 1])
                     : "memory");
  }
  /// The sum over the warps of columns [4 piece, 4 piece + 4) of a row, each times weight(warp).
  template <class Weight>
  __device__ __forceinline__ float4 total(int row, int piece, const Weight& weight) const {
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int warp = 0; warp < C::warps; ++warp) {
      float4 x;
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "r"(base + warp * C::part_bytes + offset(row, piece / 2) + piece % 2 * 16)
                   : "memory");
      const float times = weight(warp);
      sum.x += times * x.x, sum.y += times * x.y, sum.z += times * x.z, sum.w += times * x.w;
    }
    return sum;
  }
};

/// The place of a thread block and of its threads among the 16 rows: eight threads of a warp's row order share a row's pieces.
template <class C>
struct Flash1Block {
  using T = typename C::T;
  using Tile = typename C::Tile;
  const AttentionParams& p;
  const Flash1Grid& grid;
  const AttentionSequence& s;
  int b, h;
  uint32_t shared;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  static constexpr int threads_a_row = C::threads / C::rows, pieces = C::columns / 4 / threads_a_row;  // pieces of 4 columns
  int row = static_cast<int>(threadIdx.x) / threads_a_row, piece = static_cast<int>(threadIdx.x) % threads_a_row;

  __device__ int64_t cell(int query) const { return (static_cast<int64_t>(b) * p.heads + h) * grid.padded_queries + query; }
  __device__ float4* sums_at(int query, int i) const {
    return reinterpret_cast<float4*>(grid.sums + cell(query) * C::columns) + piece + i * threads_a_row;
  }
  __device__ TileSource<T> source(const AttentionTensor& t, int first, int width) const {
    return {static_cast<const T*>(t.data) + b * t.batch + h * t.head + first * t.row, t.row, 0, 0, width, t.aligned};
  }
  __device__ __forceinline__ void load_keys(int key) const {
    TileSource<T> k = source(p.k, s.first_key, p.head_dim), v = source(p.v, s.first_key, p.value_dim);
    k.end_row = v.end_row = s.keys;
    Tile::template load<C::keys, C::threads, true>(shared, k, key);
    Tile::template load<C::keys, C::threads, true>(shared + C::kv_bytes, v, key);
    ptx::commit_copies();
  }
  __device__ bool cut(int key) const { return p.right < no_limit && key + C::keys > end_key(p, s, 0); }

  /// The rows of f32 sums to a tensor of the run: 0 where a query sees no key, and in the padding.
  __device__ __forceinline__ void store(const AttentionTensor& t, int width, float times) const {
    const int begin = begin_seeing(p, s), end = end_seeing(p, s);
    for (int query = row; query < s.all_queries; query += C::rows) {
      T* const to = static_cast<T*>(t.data) + b * t.batch + h * t.head + static_cast<int64_t>(s.first_query + query) * t.row;
      for (int i = 0; i < pieces; ++i) {
        const float4 x = query >= begin && query < end ? __ldcg(sums_at(query, i)) : float4{0, 0, 0, 0};
        const float values[4] = {x.x * times, x.y * times, x.z * times, x.w * times};
        const int column = 4 * (piece + i * threads_a_row);
        if (t.aligned && column < width) {
          *reinterpret_cast<uint2*>(to + column) = {ptx::pack<T>(values[0], values[1]), ptx::pack<T>(values[2], values[3])};
          continue;
        }
        for (int e = 0; e < 4; ++e)
          if (column + e < width) to[column + e] = static_cast<T>(values[e]);
      }
    }
  }
};

}  // namespace everglow::cuda
