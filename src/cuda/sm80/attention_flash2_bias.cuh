// The gradient of an additive bias: a thread block has a tile of dbias and sums what all rows and heads that share the bias give to
// it, in a fixed order and in registers. That makes two of the five products of backward again, and needs neither atomics nor
// memory.
#pragma once

#include "cuda/sm80/attention_flash2_backward.cuh"

namespace everglow::cuda {

struct FlashBiasGrid {
  int query_blocks = 0, key_blocks = 0;
  int rows = 1, heads = 1;  // of dbias
};

template <class C>
struct FlashBiasBlock {
  using T = typename C::T;
  using Tile = typename C::Tile;
  static constexpr int spans = C::shares ? 1 : C::queries / C::span;
  float sum[spans][C::parts][C::span / 8][4];

  /// Adds what head h gives to the tile whose first query is `query`.
  __device__ __forceinline__ void add(const FlashBackwardBlock<C, true>& work, int h, int query) {
    const FlashStep step{0, h, query};
    if (work.key >= work.s.keys || query >= work.s.queries) return;
    __syncthreads();
    work.load_keys(), work.load_queries(step);
    ptx::commit_copies();
    ptx::wait_for_copies<0>();
    __syncthreads();
    const AttentionOptions<T> options(work.p, work.s, work.b, h);
#pragma unroll
    for (int i = 0; i < spans; ++i) {
      const int query16 = (C::shares ? work.column_group : i) * (C::span / 16);
      const uint32_t skip = query16 * 16 * Tile::row_bytes, keys = work.warp_row * Tile::row_bytes;
      const uint32_t lse = work.statistics(0) + 64 * query16, delta = lse + 4 * C::queries;
      FlashTransposed<C> x, dp;
      flash_transposed_products<C>(x, Tile::rows_first(work.k_tile() + keys, work.lane),
                                   Tile::columns_first(work.q_tile(0) + skip, work.lane), [](int) {});
      flash_transposed_products<C>(dp, Tile::rows_first(work.v_tile() + keys, work.lane),
                                   Tile::columns_first(work.do_tile(0) + skip, work.lane), [](int) {});
#pragma unroll
      for (int n = 0; n < C::span / 8; ++n)
#pragma unroll
        for (int m = 0; m < C::parts; ++m) {
          uint32_t rounded[2];
          const float2 d = work.statistic(delta, n);
          work.template probability<true>(x[m][n], rounded, options, m, query + 16 * query16 + 8 * n, work.statistic(lse, n));
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sum[i][m][n][e] += work.template score_gradient<true>(x[m][n][e], dp[m][n][e], e % 2 == 0 ? d.x : d.y);
        }
    }
  }

  __device__ __forceinline__ void store(const AttentionParams& p, T* to, int key, int query, int lane) const {
#pragma unroll
    for (int i = 0; i < spans; ++i)
#pragma unroll
      for (int m = 0; m < C::parts; ++m)
#pragma unroll
        for (int n = 0; n < C::span / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int column = query + i * C::span + 8 * n + 2 * (lane & 3) + e % 2, row = key + 16 * m + e / 2 * 8 + (lane >> 2);
            if (column < p.queries && row < p.keys)
              to[column * p.dbias.query + row * p.dbias.key] = static_cast<T>(sum[i][m][n][e]);
          }
  }
};

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    flash2_bias(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashBackwardGrid grid,
                const __grid_constant__ FlashBiasGrid bias) {
  extern __shared__ __align__(128) unsigned char shared[];
  int rest = static_cast<int>(blockIdx.x);
  const int key_block = rest % bias.key_blocks, query_block = rest / bias.key_blocks % bias.query_blocks;
  rest /= bias.key_blocks * bias.query_blocks;
  const int head = rest % bias.heads, row = rest / bias.heads;
  FlashBiasBlock<C> tile{};
  for (int b = bias.rows == 1 ? 0 : row; b < (bias.rows == 1 ? p.batch : row + 1); ++b) {
    const AttentionSequence s = attention_sequence(p, b);
    for (int h = bias.heads == 1 ? 0 : head; h < (bias.heads == 1 ? p.heads : head + 1); ++h) {
      FlashBackwardBlock<C, true> work{
          p, grid, s, b, h / p.group, key_block, static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
      work.bends = false;
      tile.add(work, h, query_block * C::queries);
    }
  }
  constexpr int groups = C::warps / C::column_groups;  // see FlashBackwardBlock
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int key = key_block * C::keys + warp % groups * C::warp_keys;
  const int query = query_block * C::queries + (C::shares ? warp / groups * C::span : 0);
  tile.store(p, static_cast<typename C::T*>(p.dbias.data) + row * p.dbias.batch + head * p.dbias.head, key, query,
             static_cast<int>(threadIdx.x) % 32);
}

}  // namespace everglow::cuda
