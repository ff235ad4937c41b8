// FlashAttention, forward: see attention_flash1.cuh.
#pragma once

#include "cuda/sm80/attention_flash1.cuh"

namespace everglow::cuda {

/// A warp's keys and values as operands of mma, for all queries that pass.
template <class C>
struct Flash1Keys {
  uint32_t k[C::columns / 16][C::warp_keys / 16][4];
  uint32_t v[C::warp_keys / 16][C::columns / 16][4];

  __device__ __forceinline__ void load(uint32_t tiles, int warp, int lane) {
    const uint32_t first = tiles + warp * C::warp_keys * C::Tile::row_bytes;
    const uint32_t k_place = C::Tile::columns_first(first, lane), v_place = C::Tile::rows_first(first + C::kv_bytes, lane);
#pragma unroll
    for (int d = 0; d < C::columns / 16; ++d)
#pragma unroll
      for (int n = 0; n < C::warp_keys / 16; ++n) {
        ptx::load_matrices(k[d][n], C::Tile::step(k_place, n, d));
        ptx::load_matrices_transposed(v[n][d], C::Tile::step(v_place, n, d));
      }
  }
};

template <class C>
struct Flash1ForwardBlock : Flash1Block<C> {
  using Base = Flash1Block<C>;
  using Base::b, Base::grid, Base::h, Base::lane, Base::p, Base::piece, Base::row, Base::s, Base::shared, Base::warp;
  using typename Base::T;
  using typename Base::Tile;
  float factor = Base::p.scale * log2_e;

  __device__ uint32_t q_tile(int index) const { return shared + 2 * C::kv_bytes + (index & 1) * C::q_bytes; }
  /// [2, 2, warps, 16]: the warps' maxima, then sums, of this and of the last queries.
  __device__ uint32_t statistic(int index, int which, int of_warp, int of_row) const {
    const uint32_t base = shared + 2 * C::kv_bytes + 2 * C::q_bytes + (index & 1) * C::statistic_bytes;
    return base + ((which * C::warps + of_warp) * C::rows + of_row) * 4;
  }
  __device__ Flash1Parts<C> parts(int index) const { return {shared + (index & 1) * C::warps * C::part_bytes}; }
  __device__ static __forceinline__ float read(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
  }
  __device__ static __forceinline__ void write(uint32_t at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
  }

  /// Keys that a query does not see must not reach it by 0 times NaN: what is not finite in V becomes 0, and NaN in K.
  __device__ __forceinline__ void clean_values(int key) const {
    const uint32_t v_tile = shared + C::kv_bytes;
    if (!this->cut(key)) return __syncthreads();
    if (__syncthreads_or(Tile::template copied_not_finite<C::keys, C::threads>(v_tile)) == 0) return;
    Tile::template make_finite<C::keys, C::threads>(v_tile, [&](int at) { Tile::write(shared, at, 0, 0, 0x7FFF7FFFU); });
    __syncthreads();
  }

  /// One warp's part of 16 queries: exponentials of its scores, their maxima and sums, and products with its values.
  __device__ __forceinline__ void rows_of_warp(const Flash1Keys<C>& kept, int index, int query, int key) const {
    constexpr int wide = C::warp_keys / 8;
    float x[wide][4], o[C::columns / 8][4];
    const uint32_t q_place = Tile::rows_first(q_tile(index), lane);
#pragma unroll
    for (int d = 0; d < C::columns / 16; ++d) {
      uint32_t a[4];
      ptx::load_matrices(a, Tile::step(q_place, 0, d));
#pragma unroll
      for (int n = 0; n < wide / 2; ++n) ptx::mma_pair<T>(x[2 * n], x[2 * n + 1], a, kept.k[d][n], d == 0);
    }
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = query + 8 * half + (lane >> 2), end = i < s.queries ? end_key(p, s, i) : 0;
      top[half] = -INFINITY;
#pragma unroll
      for (int n = 0; n < wide; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = x[n][2 * half + e];
          value = key + warp * C::warp_keys + 8 * n + 2 * (lane & 3) + e < end ? value * factor : -INFINITY;
          top[half] = fmaxf(top[half], value);
        }
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffU, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffU, top[half], 2));
      const float shift = top[half] == -INFINITY ? 0 : top[half];
      float sum = 0;
#pragma unroll
      for (int n = 0; n < wide; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = x[n][2 * half + e];
          value = ptx::exp2_approx(value - shift);
          sum += value;
        }
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      if ((lane & 3) == 0) {
        write(statistic(index, 0, warp, 8 * half + (lane >> 2)), top[half]);
        write(statistic(index, 1, warp, 8 * half + (lane >> 2)), sum);
      }
    }
#pragma unroll
    for (int j = 0; j < C::warp_keys / 16; ++j) {
      const uint32_t a[4] = {ptx::pack<T>(x[2 * j][0], x[2 * j][1]), ptx::pack<T>(x[2 * j][2], x[2 * j][3]),
                             ptx::pack<T>(x[2 * j + 1][0], x[2 * j + 1][1]), ptx::pack<T>(x[2 * j + 1][2], x[2 * j + 1][3])};
#pragma unroll
      for (int n = 0; n < C::columns / 16; ++n) ptx::mma_pair<T>(o[2 * n], o[2 * n + 1], a, kept.v[j][n], j == 0);
    }
    parts(index).put(warp, lane, o);
  }

  /// Joins the warps' parts of 16 queries with what the output had before this block of keys.
  __device__ __forceinline__ void join(const float4 (&before)[Base::pieces], float2 had, int index, int query, bool first) const {
    float share[C::warps], highest = first ? -INFINITY : had.x;
#pragma unroll
    for (int w = 0; w < C::warps; ++w) share[w] = read(statistic(index, 0, w, row)), highest = fmaxf(highest, share[w]);
    const float shift = highest == -INFINITY ? 0 : highest;
    const float share_before = first ? 0 : had.y * ptx::exp2_approx(had.x - shift);
    float total = share_before;
#pragma unroll
    for (int w = 0; w < C::warps; ++w) {
      share[w] = ptx::exp2_approx(share[w] - shift);
      total += share[w] * read(statistic(index, 1, w, row));
    }
    const float times = total == 0 ? 0 : 1 / total;
#pragma unroll
    for (int i = 0; i < Base::pieces; ++i) {
      const float4 x = parts(index).total(row, piece + i * Base::threads_a_row, [&](int w) { return share[w]; }), o = before[i];
      const auto joined = [&](float mine, float was) { return ((first ? 0 : share_before * was) + mine) * times; };
      *this->sums_at(query + row, i) = {joined(x.x, o.x), joined(x.y, o.y), joined(x.z, o.z), joined(x.w, o.w)};
    }
    if (piece == 0) grid.top[this->cell(query + row)] = highest, grid.sum[this->cell(query + row)] = total;
  }

  __device__ __forceinline__ void keys_from(int key) const {
    Flash1Keys<C> kept;
    TileSource<T> q = this->source(p.q, s.first_query, p.head_dim);
    q.end_row = s.queries;
    const int begin = begin_query(p, s, key) / C::rows * C::rows;
    __syncthreads();
    this->load_keys(key);
    Tile::template load<C::rows, C::threads, true>(q_tile(0), q, begin);
    ptx::commit_copies();
    ptx::wait_for_copies<0>();
    clean_values(key);
    kept.load(shared, warp, lane);
    float4 before[Base::pieces];  // the output so far of the queries that are under way
    float2 had{0, 0};
    int index = 0, query = begin;
    for (; query < s.queries; query += C::rows, ++index) {
      ptx::wait_for_copies<0>();
      __syncthreads();
      if (query + C::rows < s.queries) Tile::template load<C::rows, C::threads, true>(q_tile(index + 1), q, query + C::rows);
      ptx::commit_copies();
      if (index > 0) join(before, had, index - 1, query - C::rows, key == 0);
      if (key > 0) {
#pragma unroll
        for (int i = 0; i < Base::pieces; ++i) before[i] = *this->sums_at(query + row, i);
        had = {grid.top[this->cell(query + row)], grid.sum[this->cell(query + row)]};
      }
      rows_of_warp(kept, index, query, key);
    }
    __syncthreads();
    if (index > 0) join(before, had, index - 1, query - C::rows, key == 0);
  }

  __device__ __forceinline__ void run() const {
    for (int key = 0; key < s.keys; key += C::keys) keys_from(key);
    __syncthreads();
    this->store(p.o, p.value_dim, 1);
    if (p.lse.data == nullptr) return;
    const int begin = begin_seeing(p, s), end = end_seeing(p, s);
    for (int query = static_cast<int>(threadIdx.x); query < s.all_queries; query += C::threads) {
      const bool none = query < begin || query >= end || grid.sum[this->cell(query)] == 0;
      p.lse.data[b * p.lse.batch + h * p.lse.head + static_cast<int64_t>(s.first_query + query) * p.lse.row] =
          none ? -INFINITY : grid.top[this->cell(query)] * ln_2 + logf(grid.sum[this->cell(query)]);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::threads, 2)
    flash1_forward(const __grid_constant__ AttentionParams p, const __grid_constant__ Flash1Grid grid) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int b = static_cast<int>(blockIdx.x) / p.heads, h = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence s = attention_sequence(p, b);
  const Flash1ForwardBlock<C> work{{p, grid, s, b, h, static_cast<uint32_t>(__cvta_generic_to_shared(shared))}};
  work.run();
}

}  // namespace everglow::cuda
