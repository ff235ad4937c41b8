// FlashAttention, backward: see attention_flash1.cuh. Each warp has 16 keys of a block, their dK and dV, and its part of dQ.
#pragma once

#include "cuda/sm80/attention_flash1.cuh"

namespace everglow::cuda {

template <class C>
struct Flash1BackwardBlock : Flash1Block<C> {
  using Base = Flash1Block<C>;
  using Base::b, Base::grid, Base::h, Base::lane, Base::p, Base::piece, Base::row, Base::s, Base::shared, Base::warp;
  using typename Base::T;
  using typename Base::Tile;
  using Sums = float[C::columns / 8][4];
  float factor = Base::p.scale * log2_e;

  __device__ Flash1Parts<C> parts(int index) const {
    return {shared + 2 * C::kv_bytes + (index & (grid.buffers - 1)) * C::warps * C::part_bytes};
  }
  __device__ uint32_t q_tile(int index) const {
    return shared + 2 * C::kv_bytes + grid.buffers * C::warps * C::part_bytes + (index & 1) * C::stage_bytes;
  }
  __device__ uint32_t do_tile(int index) const { return q_tile(index) + C::q_bytes; }
  __device__ uint32_t statistics(int index) const { return q_tile(index) + 2 * C::q_bytes; }
  __device__ static __forceinline__ float2 read_pair(uint32_t at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
  }

  __device__ __forceinline__ void load_queries(int index, int query) const {
    const int thread = static_cast<int>(threadIdx.x);
    TileSource<T> q = this->source(p.q, s.first_query, p.head_dim), d_o = this->source(p.d_o, s.first_query, p.value_dim);
    q.first_row = d_o.first_row = begin_seeing(p, s), q.end_row = end_seeing(p, s);
    d_o.end_row = p.d_o.data == nullptr ? 0 : q.end_row;
    if (p.d_o.data == nullptr) d_o.data = static_cast<const T*>(p.q.data);
    Tile::template load<C::rows, C::threads, true>(q_tile(index), q, query);
    Tile::template load<C::rows, C::threads, true>(do_tile(index), d_o, query);
    if (thread < 8) {
      const float* const from = (thread < 4 ? grid.top : grid.sum) + this->cell(query) + thread % 4 * 4;
      ptx::copy_16_async(statistics(index) + thread * 16, from, 16);
    }
  }
  /// What is not finite and meets a probability of 0 becomes 0, and LSE NaN or V NaN, which bring NaN where it is seen.
  __device__ __forceinline__ void clean_queries(int index, int key, int query) const {
    if (query >= begin_query(p, s, min(key + C::keys, s.keys) - 1)) return __syncthreads();
    const uint32_t q = q_tile(index), d_o = do_tile(index);
    if (__syncthreads_or(Tile::template copied_not_finite<C::rows, C::threads>(q) ||
                         Tile::template copied_not_finite<C::rows, C::threads>(d_o)) == 0)
      return;
    const auto mark = [&](int at) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(statistics(index) + 4 * at), "f"(NAN) : "memory");
    };
    Tile::template make_finite<C::rows, C::threads>(q, mark);
    Tile::template make_finite<C::rows, C::threads>(d_o, mark);
    __syncthreads();
  }
  __device__ __forceinline__ void clean_keys() const {
    if (__syncthreads_or(Tile::template copied_not_finite<C::keys, C::threads>(shared)) == 0) return;
    Tile::template make_finite<C::keys, C::threads>(shared,
                                                    [&](int at) { Tile::write(shared + C::kv_bytes, at, 0, 0, 0x7FFF7FFFU); });
    __syncthreads();
  }

  /// x[16 keys of this warp, 16 queries].
  __device__ __forceinline__ void products(float (&x)[2][4], uint32_t keys, uint32_t queries) const {
    const uint32_t key_place = Tile::rows_first(keys + warp * C::warp_keys * Tile::row_bytes, lane);
    const uint32_t query_place = Tile::columns_first(queries, lane);
#pragma unroll
    for (int d = 0; d < C::columns / 16; ++d) {
      uint32_t a[4], other[4];
      ptx::load_matrices(a, Tile::step(key_place, 0, d));
      ptx::load_matrices(other, Tile::step(query_place, 0, d));
      ptx::mma_pair<T>(x[0], x[1], a, other, d == 0);
    }
  }
  /// sum (+)= a times 16 rows of a tile.
  __device__ __forceinline__ void add(Sums& sum, const uint32_t (&a)[4], uint32_t tile, bool first) const {
    const uint32_t place = Tile::rows_first(tile, lane);
#pragma unroll
    for (int n = 0; n < C::columns / 16; ++n) {
      uint32_t other[4];
      ptx::load_matrices_transposed(other, Tile::step(place, 0, n));
      ptx::mma_pair<T>(sum[2 * n], sum[2 * n + 1], a, other, first);
    }
  }

  __device__ __forceinline__ void rows_of_warp(Sums& dk, Sums& dv, int index, int query, int key) const {
    float x[2][4], dp[2][4];
    uint32_t a[4];
    Sums dq;
    products(x, shared, q_tile(index));
    products(dp, shared + C::kv_bytes, do_tile(index));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 lse = read_pair(statistics(index) + (8 * n + 2 * (lane & 3)) * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = key + warp * C::warp_keys + e / 2 * 8 + (lane >> 2), i = query + 8 * n + 2 * (lane & 3) + e % 2;
        const bool sees = j < s.keys && i >= begin_query(p, s, j) && i < s.queries;
        x[n][e] = sees ? ptx::exp2_approx(fmaf(x[n][e], factor, e % 2 == 0 ? -lse.x : -lse.y)) : 0;
      }
      a[2 * n] = ptx::pack<T>(x[n][0], x[n][1]), a[2 * n + 1] = ptx::pack<T>(x[n][2], x[n][3]);
    }
    add(dv, a, do_tile(index), false);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 delta = read_pair(statistics(index) + (C::rows + 8 * n + 2 * (lane & 3)) * 4);
      float ds[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) ds[e] = x[n][e] == 0 ? 0 : x[n][e] * (dp[n][e] - (e % 2 == 0 ? delta.x : delta.y));
      a[2 * n] = ptx::pack<T>(ds[0], ds[1]), a[2 * n + 1] = ptx::pack<T>(ds[2], ds[3]);
    }
    add(dk, a, q_tile(index), false);
    const uint32_t turned[4] = {ptx::transposed(a[0]), ptx::transposed(a[2]), ptx::transposed(a[1]), ptx::transposed(a[3])};
    add(dq, turned, shared + warp * C::warp_keys * Tile::row_bytes, true);
    parts(index).put(warp, lane, dq);
  }

  __device__ __forceinline__ void store_keys(const AttentionTensor& t, const Sums& sum, uint32_t tile, int key, float times) const {
    if (t.data == nullptr) return;
    const int local = warp * C::warp_keys, width = tile == shared ? p.head_dim : p.value_dim;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < C::columns / 8; ++n)
        Tile::write(tile, local + 8 * half + (lane >> 2), n, lane & 3,
                    ptx::pack<T>(sum[n][2 * half] * times, sum[n][2 * half + 1] * times));
    __syncwarp();
    T* const to = static_cast<T*>(t.data) + b * t.batch + h * t.head;
    constexpr int wide = C::columns / 8;
    for (int i = lane; i < C::warp_keys * wide; i += 32) {
      const int at = local + i / wide, j = key + at;
      const uint4 words = j < s.keys ? Tile::read_piece(tile, at, i % wide) : uint4{0, 0, 0, 0};
      if (j < s.all_keys) Tile::store_piece(to + static_cast<int64_t>(s.first_key + j) * t.row, i % wide, width, t.aligned, words);
    }
  }

  /// The warps' parts of 16 queries to dQ in memory, each element of which only one thread ever meets.
  __device__ __forceinline__ void add_query_gradients(int index, int query, int key) const {
    if (grid.sums == nullptr) return;
#pragma unroll
    for (int i = 0; i < Base::pieces; ++i) {
      const float4 x = parts(index).total(row, piece + i * Base::threads_a_row, [](int) { return 1.0F; });
      float4* const to = this->sums_at(query + row, i);
      if (key == 0)
        *to = x;
      else
        ptx::add_4(&to->x, {x.x, x.y, x.z, x.w});
    }
  }

  __device__ __forceinline__ void keys_from(int key) const {
    Sums dk = {}, dv = {};
    const int begin = begin_query(p, s, key) / C::rows * C::rows, end = key < s.keys ? s.queries : begin;
    __syncthreads();
    if (begin < end) {
      this->load_keys(key);
      load_queries(0, begin);
    }
    ptx::commit_copies();
    int index = 0, query = begin;
    for (; query < end; query += C::rows, ++index) {
      ptx::wait_for_copies<0>();
      if (index == 0) clean_keys();
      clean_queries(index, key, query);
      if (query + C::rows < end) load_queries(index + 1, query + C::rows);
      ptx::commit_copies();
      if (grid.buffers == 2 && index > 0) add_query_gradients(index - 1, query - C::rows, key);
      rows_of_warp(dk, dv, index, query, key);
      if (grid.buffers == 2) continue;
      __syncthreads();
      add_query_gradients(index, query, key);
    }
    ptx::wait_for_copies<0>();
    __syncthreads();
    if (grid.buffers == 2 && index > 0) add_query_gradients(index - 1, query - C::rows, key);
    store_keys(p.dk, dk, shared, key, p.scale);
    store_keys(p.dv, dv, shared + C::kv_bytes, key, 1);
  }

  __device__ __forceinline__ void run() const {
    for (int key = 0; key < s.all_keys; key += C::keys) keys_from(key);
    __syncthreads();
    if (p.dq.data != nullptr) this->store(p.dq, p.head_dim, p.scale);
  }
};

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    flash1_backward(const __grid_constant__ AttentionParams p, const __grid_constant__ Flash1Grid grid) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int b = static_cast<int>(blockIdx.x) / p.heads, h = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence s = attention_sequence(p, b);
  const Flash1BackwardBlock<C> work{{p, grid, s, b, h, static_cast<uint32_t>(__cvta_generic_to_shared(shared))}};
  work.run();
}

}  // namespace everglow::cuda
