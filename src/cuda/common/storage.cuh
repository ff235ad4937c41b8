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
/// Rounds to nearest even.
template <class T>
__device__ inline T narrow(float value) {
  return static_cast<T>(value);
}

/// A 16-bit element of these bits, and back.
template <class T>
__device__ inline T bits_as(std::uint16_t bits) {
  if constexpr (std::is_same_v<T, __half>)
    return __ushort_as_half(bits);
  else
    return __ushort_as_bfloat16(bits);
}
__device__ inline std::uint16_t as_bits(__half value) { return __half_as_ushort(value); }
__device__ inline std::uint16_t as_bits(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }

/// Two elements in one word, the first in its low half.
template <class T>
__device__ inline std::uint32_t narrow_two(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(first, second);
    return static_cast<std::uint32_t>(as_bits(two.x)) | static_cast<std::uint32_t>(as_bits(two.y)) << 16;
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return static_cast<std::uint32_t>(as_bits(two.x)) | static_cast<std::uint32_t>(as_bits(two.y)) << 16;
  }
}

}  // namespace everglow::cuda
