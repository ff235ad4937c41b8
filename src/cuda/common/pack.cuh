// Elements that move together, 16 bytes at most. They are stored by an intrinsic: left to itself the compiler takes a struct apart
// and stores its members one by one, at half the speed.
#pragma once

#include "cuda/common/storage.cuh"

#include <cstdint>

namespace everglow::cuda {

/// A matrix in the memory of a card: element (row, column) lies at data[row * stride + column * step].
struct Plane {
  const void* data = nullptr;
  std::int64_t stride = 0, step = 1;
};

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];

  __device__ float value(int v) const { return widen(at[v]); }
  /// Rounds to nearest even, two 16-bit elements in one instruction.
  __device__ static Pack of(const float (&values)[V]) {
    Pack out;
    if constexpr (sizeof(T) == 2 && V > 1) {
#pragma unroll
      for (int v = 0; v < V; v += 2) narrow_two(values[v], values[v + 1], out.at[v], out.at[v + 1]);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) out.at[v] = narrow<T>(values[v]);
    }
    return out;
  }
};

template <std::size_t bytes>
using Words = std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, std::uint32_t>>;

/// The elements [column, column + V) of a row; in the place of those past `columns`, the filler.
template <class T, int V>
__device__ inline Pack<T, V> load_pack(const Plane& plane, std::int64_t row, std::int64_t column, std::int64_t columns,
                                       float filler = 0) {
  const T* const from = static_cast<const T*>(plane.data) + row * plane.stride;
  Pack<T, V> out;
  if constexpr (V == 1) {
    out.at[0] = from[column * plane.step];
  } else if (column + V <= columns) {
    const auto words = *reinterpret_cast<const Words<sizeof out>*>(from + column);
    memcpy(&out, &words, sizeof out);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) out.at[v] = column + v < columns ? from[column + v] : narrow<T>(filler);
  }
  return out;
}

template <class T, int V>
__device__ inline void store_pack(const Plane& plane, std::int64_t row, std::int64_t column, std::int64_t columns,
                                  const Pack<T, V>& pack) {
  T* const to = static_cast<T*>(const_cast<void*>(plane.data)) + row * plane.stride;
  if constexpr (V == 1) {
    to[column * plane.step] = pack.at[0];
  } else if (column + V <= columns) {
    Words<sizeof pack> words;
    memcpy(&words, &pack, sizeof words);
    __stwb(reinterpret_cast<Words<sizeof pack>*>(to + column), words);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (column + v < columns) to[column + v] = pack.at[v];
  }
}

/// Whether packs of `bytes` bytes may be read or written.
inline bool packs(const Plane& plane, std::int64_t rows, std::size_t size, std::size_t bytes) {
  return plane.step == 1 && reinterpret_cast<std::uintptr_t>(plane.data) % bytes == 0 &&
         (rows == 1 || plane.stride * static_cast<std::int64_t>(size) % static_cast<std::int64_t>(bytes) == 0);
}

}  // namespace everglow::cuda
