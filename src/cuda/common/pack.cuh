// Elements that move together, 16 bytes at most. They are kept as 32-bit words and stored by an intrinsic: left to itself the
// compiler takes a struct apart and stores its members one by one, at half the speed.
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
  static constexpr int words = static_cast<int>(sizeof(T)) * V / 4;
  static_assert(words == 1 || words == 2 || words == 4, "a pack is what one instruction moves");
  std::uint32_t word[words];

  __device__ float value(int v) const {
    if constexpr (sizeof(T) == 8)
      return static_cast<float>(__hiloint2double(static_cast<int>(word[2 * v + 1]), static_cast<int>(word[2 * v])));
    else if constexpr (sizeof(T) == 4)
      return __uint_as_float(word[v]);
    else
      return widen(bits_as<T>(static_cast<std::uint16_t>(word[v / 2] >> (16 * (v % 2)))));
  }
  /// Rounds to nearest even.
  __device__ static Pack of(const float (&values)[V]) {
    Pack out;
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (sizeof(T) == 4)
        out.word[w] = __float_as_uint(values[w]);
      else
        out.word[w] = narrow_two<T>(values[2 * w], values[2 * w + 1]);
    }
    return out;
  }
};

/// One element, of any size.
template <class T>
struct Pack<T, 1> {
  T element;
  __device__ float value(int) const { return widen(element); }
  __device__ static Pack of(const float (&values)[1]) { return {narrow<T>(values[0])}; }
};

template <int words>
using Words = std::conditional_t<words == 4, uint4, std::conditional_t<words == 2, uint2, std::uint32_t>>;

/// The elements [column, column + V) of a row; in the place of those past `columns`, the filler.
template <class T, int V>
__device__ inline Pack<T, V> load_pack(const Plane& plane, std::int64_t row, std::int64_t column, std::int64_t columns,
                                       float filler = 0) {
  const T* const from = static_cast<const T*>(plane.data) + row * plane.stride;
  Pack<T, V> out;
  if constexpr (V == 1) {
    out.element = from[column * plane.step];
  } else if (column + V <= columns) {
    const auto bits = *reinterpret_cast<const Words<Pack<T, V>::words>*>(from + column);
    memcpy(&out, &bits, sizeof out);
  } else if constexpr (sizeof(T) >= 4) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const T element = column + v < columns ? from[column + v] : static_cast<T>(filler);
      memcpy(out.word + v * (sizeof(T) / 4), &element, sizeof element);
    }
  } else {
#pragma unroll
    for (int w = 0; w < V / 2; ++w) {
      const auto one = [&](int v) -> std::uint32_t { return as_bits(column + v < columns ? from[column + v] : narrow<T>(filler)); };
      out.word[w] = one(2 * w) | one(2 * w + 1) << 16;
    }
  }
  return out;
}

template <class T, int V>
__device__ inline void store_pack(const Plane& plane, std::int64_t row, std::int64_t column, std::int64_t columns,
                                  const Pack<T, V>& pack) {
  T* const to = static_cast<T*>(const_cast<void*>(plane.data)) + row * plane.stride;
  if constexpr (V == 1) {
    to[column * plane.step] = pack.element;
  } else if (column + V <= columns) {
    Words<Pack<T, V>::words> bits;
    memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<Words<Pack<T, V>::words>*>(to + column), bits);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (column + v < columns) to[column + v] = narrow<T>(pack.value(v));  // exact: it was of this type
  }
}

/// Whether packs of `bytes` bytes may be read or written.
inline bool packs(const Plane& plane, std::int64_t rows, std::size_t size, std::size_t bytes) {
  return plane.step == 1 && reinterpret_cast<std::uintptr_t>(plane.data) % bytes == 0 &&
         (rows == 1 || plane.stride * static_cast<std::int64_t>(size) % static_cast<std::int64_t>(bytes) == 0);
}

}  // namespace everglow::cuda
