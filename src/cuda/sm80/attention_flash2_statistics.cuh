// What stands before and after the backward kernel: LSE and delta = sum of dO o less the gradient of LSE, one warp a query, and dQ
// from the sums that mma left in its own order.
#pragma once

#include "cuda/common/attention_rows.cuh"
#include "cuda/sm80/attention_flash2_backward.cuh"

namespace everglow::cuda {

inline constexpr int flash_rows_a_block = 8;  // one warp each

template <class T>
__global__ void __launch_bounds__(32 * flash_rows_a_block)
    flash2_statistics(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashBackwardGrid grid) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t cell = static_cast<int64_t>(blockIdx.x) * flash_rows_a_block + static_cast<int>(threadIdx.x) / 32;
  if (cell >= static_cast<int64_t>(p.batch) * p.heads * grid.padded_queries) return;
  const int i = static_cast<int>(cell % grid.padded_queries), pair = static_cast<int>(cell / grid.padded_queries);
  const int b = pair / p.heads, h = pair % p.heads;
  const AttentionSequence s = attention_sequence(p, b);
  float lse = -INFINITY, delta = 0;
  if (i >= begin_seeing(p, s) && i < end_seeing(p, s)) {
    const int64_t row = s.first_query + i;
    lse = p.lse.data[b * p.lse.batch + h * p.lse.head + row * p.lse.row];
    if (p.d_o.data != nullptr) {
      const T* d_o = static_cast<const T*>(p.d_o.data) + b * p.d_o.batch + row * p.d_o.row + h * p.d_o.head;
      const T* o = static_cast<const T*>(p.o.data) + b * p.o.batch + row * p.o.row + h * p.o.head;
      for (int e = lane; e < p.value_dim; e += 32) delta += widen(d_o[e]) * widen(o[e]);
      for (int mask = 16; mask > 0; mask /= 2) delta += __shfl_xor_sync(0xffffffffU, delta, mask);
    }
    if (p.dlse.data != nullptr) delta -= p.dlse.data[b * p.dlse.batch + h * p.dlse.head + row * p.dlse.row];
  }
  if (lane != 0) return;
  const bool none = lse == -INFINITY;
  grid.lse[cell] = none ? INFINITY : lse * log2_e;
  grid.delta[cell] = none ? 0 : delta;
}

/// dQ of one row, eight columns a thread.
template <class T, int columns>
__global__ void __launch_bounds__(256)
    flash2_query_gradients(const __grid_constant__ AttentionParams p, const __grid_constant__ FlashBackwardGrid grid) {
  using Tile = SharedTile<T, columns>;
  constexpr int pieces = columns / 8;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, cell = index / pieces;
  const int piece = static_cast<int>(index % pieces);
  if (cell >= static_cast<int64_t>(p.batch) * p.heads * grid.padded_queries) return;
  const int i = static_cast<int>(cell % grid.padded_queries), pair = static_cast<int>(cell / grid.padded_queries);
  const int b = pair / p.heads, h = pair % p.heads;
  const AttentionSequence s = attention_sequence(p, b);
  if (i >= s.all_queries) return;
  const float* part = grid.dq + static_cast<int64_t>(pair) * grid.padded_queries * columns +
                      static_cast<int64_t>(i / 16 * pieces + piece) * 128 + (i % 8) * 16 + (i / 8 % 2) * 2;
  const bool sees = i >= begin_seeing(p, s) && i < end_seeing(p, s);
  uint32_t words[4];
  for (int t = 0; t < 4; ++t) {
    const float2 x = sees ? *reinterpret_cast<const float2*>(part + 4 * t) : float2{0, 0};
    words[t] = ptx::pack<T>(x.x * p.scale, x.y * p.scale);
  }
  T* row = static_cast<T*>(p.dq.data) + b * p.dq.batch + static_cast<int64_t>(s.first_query + i) * p.dq.row + h * p.dq.head;
  Tile::store_piece(row, piece, p.head_dim, p.dq.aligned, {words[0], words[1], words[2], words[3]});
}

}  // namespace everglow::cuda
