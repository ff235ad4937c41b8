// The arithmetic of softmax on a card: sums of exponentials below a top, how two of them join, and what an element becomes.
#pragma once

#include "cuda/common/pack.cuh"
#include "cuda/ptx/math.cuh"

#include <cstdint>
#include <type_traits>

namespace everglow::cuda {

/// Of some elements of a row: forward their maximum and the sum of exponentials below it, backward the sum alone. Nothing: -inf, 0.
struct SoftmaxPart {
  float top, sum;
};

struct SoftmaxParams {
  Plane x;   // forward: x; backward: y
  Plane d;   // backward: dy
  Plane to;  // y or dx
  std::int64_t rows, columns;
  SoftmaxPart* parts;    // [rows, segments] of rows that are made in two launches
  std::int64_t segment;  // columns of a block
  int segments;          // blocks of a row
  int apart;             // rows between two that a block makes one after the other
  int resident;          // packs of a thread that stay in shared memory
  bool log, zero;        // log-softmax; a row of nothing but -inf becomes zeros
};

__device__ inline float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000U)); }

/// What is taken from elements before the exponential: their top, but 0 where all are -inf, so that these become 0 and a NaN stays.
__device__ inline float below(float top) { return top == negative_infinity() ? 0 : top; }

/// f32 results are right to two units in the last place of an exponential; 16-bit ones need no more than two instructions.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return ptx::exp2_fast(x * 1.44269504F);
}

__device__ inline SoftmaxPart join(const SoftmaxPart& a, const SoftmaxPart& b) {
  const float top = fmaxf(a.top, b.top), from = below(top);
  return {top, a.sum * expf(a.top - from) + b.sum * expf(b.top - from)};
}

/// Over each `lanes` lanes, in every one of them.
template <int lanes = 32>
__device__ inline float join_max(float value) {
#pragma unroll
  for (int lane = lanes / 2; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, lane));
  return value;
}
template <int lanes = 32>
__device__ inline float join_sum(float value) {
#pragma unroll
  for (int lane = lanes / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffU, value, lane);
  return value;
}

/// Of all threads of a block, in every one of them; `shared` holds one value for each warp.
template <class JoinWarp>
__device__ inline float join_block(float value, float nothing, float* shared, const JoinWarp& join_warp) {
  value = join_warp(value);
  const int count = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return join_warp(lane < count ? shared[lane] : nothing);
}

template <class T, int V>
__device__ inline float pack_max(float top, const Pack<T, V>& x) {
  if constexpr (sizeof(T) == 2 && V > 1) {  // two elements by one instruction, exactly
    using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Two most(x.at[0], x.at[1]);
#pragma unroll
    for (int v = 2; v < V; v += 2) most = __hmax2(most, Two(x.at[v], x.at[v + 1]));
    return fmaxf(top, fmaxf(widen(most.x), widen(most.y)));
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) top = fmaxf(top, x.value(v));
    return top;
  }
}
template <class T, int V>
__device__ inline float pack_sum(float sum, const Pack<T, V>& x, float from) {
#pragma unroll
  for (int v = 0; v < V; ++v) sum += exponential<T>(x.value(v) - from);
  return sum;
}
/// An f32 exponential may take the place of what it is of, so that it is made once; 16 bits would lose its digits.
template <class T>
constexpr bool keeps_exponentials = std::is_same_v<T, float>;
template <int V>
__device__ inline float pack_exponentials(float sum, Pack<float, V>& x, float from) {
#pragma unroll
  for (int v = 0; v < V; ++v) sum += x.at[v] = exponential<float>(x.at[v] - from);
  return sum;
}
template <int V>
__device__ inline Pack<float, V> scaled(Pack<float, V> x, float factor) {
#pragma unroll
  for (int v = 0; v < V; ++v) x.at[v] *= factor;
  return x;
}

/// Backward: the sum of y dy, or of dy where y is a logarithm.
template <class T, int V>
__device__ inline float pack_products(float sum, const Pack<T, V>& y, const Pack<T, V>& dy, bool log) {
  if (log) {
#pragma unroll
    for (int v = 0; v < V; ++v) sum += dy.value(v);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) sum = fmaf(y.value(v), dy.value(v), sum);
  }
  return sum;
}

/// What forward needs of a whole row for each of its elements. An empty row of which zeros are wanted has the scale 0, or as a
/// logarithm nothing to take away.
struct Normaliser {
  float from, scale, log_sum;
  bool log;
  __device__ Normaliser(const SoftmaxPart& whole, const SoftmaxParams& p) : from(below(whole.top)), log(p.log) {
    const bool zeros = p.zero && whole.sum == 0;
    scale = zeros ? 0 : 1 / whole.sum;
    log_sum = zeros ? 0 : logf(whole.sum);
  }
  template <class T, int V>
  __device__ Pack<T, V> results(const Pack<T, V>& x) const {
    float out[V];
    if (log) {
#pragma unroll
      for (int v = 0; v < V; ++v) out[v] = x.value(v) - from - log_sum;
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) out[v] = exponential<T>(x.value(v) - from) * scale;
    }
    return Pack<T, V>::of(out);
  }
};

template <class T, int V>
__device__ inline Pack<T, V> gradients(const Pack<T, V>& y, const Pack<T, V>& dy, float sum, bool log) {
  float out[V];
  if (log) {
#pragma unroll
    for (int v = 0; v < V; ++v) out[v] = dy.value(v) - exponential<T>(y.value(v)) * sum;
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) out[v] = y.value(v) * (dy.value(v) - sum);
  }
  return Pack<T, V>::of(out);
}

}  // namespace everglow::cuda
