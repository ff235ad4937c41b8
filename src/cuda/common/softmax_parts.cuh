// The arithmetic of softmax on a card: running maxima and sums and how two of them join, the same for every kernel.
#pragma once

#include "cuda/common/elementwise.cuh"

#include <cstdint>

namespace everglow::cuda {

/// Of some elements of a row: forward their maximum and the sum of exponentials below it, backward the sum alone.
struct SoftmaxPart {
  float top, sum;
};

__device__ inline float negative_infinity() { return __int_as_float(0xff800000); }

struct SoftmaxParams {
  Plane x;   // forward: x; backward: y
  Plane d;   // backward: dy
  Plane to;  // y or dx
  std::int64_t rows, columns;
  SoftmaxPart* parts;    // [rows, segments] of a row that is made in several launches
  std::int64_t segment;  // columns of one of them, and of a block of a cluster
  std::int64_t segments;
  bool log, zero;  // log-softmax; a row of nothing but -inf becomes zeros
};

struct Forward {
  static constexpr bool backward = false;

  static __device__ SoftmaxPart none() { return {negative_infinity(), 0}; }
  /// An empty part has sum 0; a NaN has made the sum NaN, which stays.
  static __device__ SoftmaxPart join(const SoftmaxPart& a, const SoftmaxPart& b) {
    if (b.sum == 0) return a;
    if (a.sum == 0) return b;
    const float top = fmaxf(a.top, b.top);
    return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
  }
  /// Adds V elements to a running part: one exponential for what was there and one for each of them.
  template <class T, int V>
  static __device__ void add(SoftmaxPart& part, const Pack<T, V>& x, const Pack<T, V>&, int count, bool) {
    float top = part.top;
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < count) top = fmaxf(top, widen(x.at[v]));
    if (part.sum != 0) part.sum *= expf(part.top - top);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float value = widen(x.at[v]);
      if (v < count && value != negative_infinity()) part.sum += expf(value - top);
    }
    part.top = top;
  }
  /// What the elements of a row have in common.
  static __device__ SoftmaxPart finish(const SoftmaxPart& part, bool log) {
    return {part.top, log ? logf(part.sum) : 1 / part.sum};
  }
  static __device__ float result(float x, float, const SoftmaxPart& whole, bool log) {
    return log ? x - whole.top - whole.sum : expf(x - whole.top) * whole.sum;
  }
};

struct Backward {
  static constexpr bool backward = true;

  static __device__ SoftmaxPart none() { return {0, 0}; }
  static __device__ SoftmaxPart join(const SoftmaxPart& a, const SoftmaxPart& b) { return {0, a.sum + b.sum}; }
  template <class T, int V>
  static __device__ void add(SoftmaxPart& part, const Pack<T, V>& y, const Pack<T, V>& dy, int count, bool log) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < count) part.sum += log ? widen(dy.at[v]) : widen(y.at[v]) * widen(dy.at[v]);
  }
  static __device__ SoftmaxPart finish(const SoftmaxPart& part, bool) { return part; }
  static __device__ float result(float y, float dy, const SoftmaxPart& whole, bool log) {
    return log ? dy - expf(y) * whole.sum : y * (dy - whole.sum);
  }
};

template <class Pass>
__device__ inline SoftmaxPart join_warp(SoftmaxPart part) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const SoftmaxPart other{__shfl_xor_sync(0xffffffffU, part.top, lane), __shfl_xor_sync(0xffffffffU, part.sum, lane)};
    part = Pass::join(part, other);
  }
  return part;
}

/// Of all threads of a block, in every one of them. `shared` holds one part for each warp.
template <class Pass>
__device__ inline SoftmaxPart join_block(SoftmaxPart part, SoftmaxPart* shared) {
  part = join_warp<Pass>(part);
  const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) shared[threadIdx.x / 32] = part;
  __syncthreads();
  return join_warp<Pass>(lane < warps ? shared[lane] : Pass::none());
}

/// The results of a pack, for a row whose common part is finished.
template <class Pass, class T, int V>
__device__ inline Pack<T, V> softmax_results(const Pack<T, V>& x, const Pack<T, V>& d, const SoftmaxPart& whole,
                                             const SoftmaxParams& p, bool empty) {
  Pack<T, V> out;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float value = Pass::result(widen(x.at[v]), widen(d.at[v]), whole, p.log);
    out.at[v] = narrow<T>(empty ? (p.log ? negative_infinity() : 0) : value);
  }
  return out;
}

}  // namespace everglow::cuda
