// Elements in the memory of a card: the storage types as CUDA names them, and their arithmetic in f32.
#pragma once

#include <everglow/storage.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace everglow::cuda {

/// float, __half or __nv_bfloat16 for float, Half or BFloat16.
template <class T>
using Stored =
    std::conditional_t<std::is_same_v<T, Half>, __half, std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, T>>;

template <class T>
__device__ inline float widen(T value) {
  return static_cast<float>(value);
}
/// By shifts, in which the compiler sees two elements of one register; the toolkit's conversion takes each to a register of its own.
__device__ inline float widen(__nv_bfloat16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(__bfloat16_as_ushort(value)) << 16);
}
/// Rounds to nearest even.
template <class T>
__device__ inline T narrow(float value) {
  return static_cast<T>(value);
}

/// Two elements by one instruction.
__device__ inline void narrow_two(float first, float second, __half& a, __half& b) {
  const __half2 two = __floats2half2_rn(first, second);
  a = two.x, b = two.y;
}
__device__ inline void narrow_two(float first, float second, __nv_bfloat16& a, __nv_bfloat16& b) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
  a = two.x, b = two.y;
}

}  // namespace everglow::cuda
