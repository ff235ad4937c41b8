// y = f(a, b) over two dimensions of any strides, in f32 between loads and stores. Where elements lie side by side on 16 bytes, a
// thread moves 16 bytes at a time; each loads several times before it stores, to have enough bytes under way.
#pragma once

#include "cuda/common/device.hpp"
#include "cuda/common/pack.cuh"

#include <algorithm>
#include <cstdint>

namespace everglow::cuda {

template <class F>
struct ElementwiseParams {
  Plane a, b, y;  // a and b: where F reads them; b may be y
  std::int64_t rows, columns;
  F f;
};

constexpr int elementwise_threads = 256;

/// What F makes of V elements that begin at an index in logical order: all at once where it can, else one by one.
template <int V, class F>
__device__ inline void apply(const F& f, const float (&a)[V], const float (&b)[V], float (&y)[V], std::int64_t index) {
  if constexpr (requires { f.all(a, b, y, index); }) {
    f.all(a, b, y, index);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) y[v] = f(a[v], b[v], index + v);
  }
}

/// A is the type of a, T that of b and y. F: `static constexpr bool reads_a, reads_b` and float operator()(a, b, index), where
/// index counts the elements in logical order; it may have all(a, b, y, index) for several of them.
template <class A, class T, int V, class F>
__global__ void __launch_bounds__(elementwise_threads) elementwise_kernel(const __grid_constant__ ElementwiseParams<F> p) {
  constexpr int unrolled = V > 1 ? 4 : 8;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * unrolled * blockDim.x + threadIdx.x) * V;
  const std::int64_t apart = static_cast<std::int64_t>(blockDim.x) * V,
                     rows_at_once = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < p.rows; row += rows_at_once) {
    Pack<A, V> a[unrolled];
    Pack<T, V> b[unrolled];
#pragma unroll
    for (int u = 0; u < unrolled; ++u) {
      const std::int64_t column = first + u * apart;
      if (column >= p.columns) break;
      if constexpr (F::reads_a) a[u] = load_pack<A, V>(p.a, row, column, p.columns);
      if constexpr (F::reads_b) b[u] = load_pack<T, V>(p.b, row, column, p.columns);
    }
#pragma unroll
    for (int u = 0; u < unrolled; ++u) {
      const std::int64_t column = first + u * apart;
      if (column >= p.columns) break;
      float left[V] = {}, right[V] = {}, y[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if constexpr (F::reads_a) left[v] = a[u].value(v);
        if constexpr (F::reads_b) right[v] = b[u].value(v);
      }
      apply<V>(p.f, left, right, y, row * p.columns + column);
      store_pack<T, V>(p.y, row, column, p.columns, Pack<T, V>::of(y));
    }
  }
}

template <class A, class T, int V, class F>
void launch_elementwise_packs(const ElementwiseParams<F>& p, cudaStream_t stream) {
  constexpr std::int64_t unrolled = V > 1 ? 4 : 8, most_rows = 32768;
  int x = 32;
  while (x < elementwise_threads && x * V * unrolled < p.columns) x *= 2;
  const int y = elementwise_threads / x;
  const std::int64_t wide = x * V * unrolled;
  const dim3 grid(static_cast<unsigned>((p.columns + wide - 1) / wide),
                  static_cast<unsigned>(std::min<std::int64_t>((p.rows + y - 1) / y, most_rows)));
  elementwise_kernel<A, T, V><<<grid, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 0, stream>>>(p);
  check_launch("elementwise");
}

/// Rows that follow one another without gaps are one row.
template <class A, class T, class F>
void launch_elementwise(ElementwiseParams<F> p, cudaStream_t stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const auto gapless = [&](const Plane& plane) { return plane.step == 1 && plane.stride == p.columns; };
  if (gapless(p.y) && (!F::reads_a || gapless(p.a)) && (!F::reads_b || gapless(p.b))) p.columns *= p.rows, p.rows = 1;
  constexpr int V = 16 / static_cast<int>(std::max(sizeof(A), sizeof(T)));
  const bool whole = packs(p.y, p.rows, sizeof(T), V * sizeof(T)) &&
                     (!F::reads_a || packs(p.a, p.rows, sizeof(A), V * sizeof(A))) &&
                     (!F::reads_b || packs(p.b, p.rows, sizeof(T), V * sizeof(T)));
  if (whole)
    launch_elementwise_packs<A, T, V>(p, stream);
  else
    launch_elementwise_packs<A, T, 1>(p, stream);
}

struct Identity {
  static constexpr bool reads_a = true, reads_b = false;
  __device__ float operator()(float a, float, std::int64_t) const { return a; }
};
struct Sum {
  static constexpr bool reads_a = true, reads_b = true;
  __device__ float operator()(float a, float b, std::int64_t) const { return a + b; }
};

}  // namespace everglow::cuda
