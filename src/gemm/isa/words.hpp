// Stored matrices as the packing reads them: element by element, or as words of two bf16 of consecutive k. Included only by the
// sources of this folder.
#pragma once

#include "core/stored_simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// A stored matrix whose element type is known.
template <class T>
struct Source {
  const T* data;
  std::int64_t stride, step;
  explicit Source(const Stored& m) : data(static_cast<const T*>(m.data)), stride(m.stride), step(m.step) {}
  const T* at(std::int64_t row, std::int64_t column) const { return data + row * stride + column * step; }
  vfloat read(std::int64_t row, std::int64_t column, int count) const { return read_elements(at(row, column), step, count); }
};

#if defined(__AVX512BF16__)
using Word = std::uint32_t __attribute__((may_alias));

inline std::int64_t words_of(std::int64_t k) { return (k + 1) / 2; }

/// 2 · lanes elements that stand together.
inline vfloat join(const BFloat16* p) { return reinterpret_cast<vfloat>(load_words(p)); }
/// The same of f32 whose lower halves are zero.
inline vfloat join(const float* p) {
  using vshorts = std::uint16_t __attribute__((vector_size(4 * EVERGLOW_LANES)));
  const auto low = reinterpret_cast<vshorts>(load(p)), high = reinterpret_cast<vshorts>(load(p + lanes));
  return reinterpret_cast<vfloat>(__builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33,
                                                          35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63));
}

/// Words along stored rows of k elements: (row, word) holds the elements 2 · word and the next, or zero behind the last.
template <class T>
struct PairsAlong {
  Source<T> from;
  std::int64_t k, step = 0;
  PairsAlong(const Stored& m, std::int64_t k_) : from(m), k(k_) {}
  vfloat read(std::int64_t row, std::int64_t word, int count) const {
    const T* p = from.at(row, 2 * word);
    const std::int64_t left = k - 2 * word, n = left < 2 * count ? left : 2 * count;
    if (from.step == 1 && n == 2 * lanes) return join(p);
    T buffer[2 * lanes];
    for (int i = 0; i < 2 * lanes; ++i) buffer[i] = i < n ? p[i * from.step] : T{};
    return join(buffer);
  }
};

/// Words across stored rows, of which there are k: (word, column) holds the elements of rows 2 · word and the next, or zero.
struct PairsAcross {
  Source<BFloat16> from;
  std::int64_t k, step;
  PairsAcross(const Stored& m, std::int64_t k_) : from(m), k(k_), step(m.step) {}
  vuint bits(std::int64_t row, std::int64_t column, int count) const {
    if (row >= k) return splat_bits(0);
    const BFloat16* p = from.at(row, column);
    if (step == 1 && count == lanes) return load_bits(p);
    BFloat16 buffer[lanes];
    for (int i = 0; i < lanes; ++i) buffer[i] = i < count ? p[i * step] : BFloat16{};
    return load_bits(buffer);
  }
  vfloat read(std::int64_t word, std::int64_t column, int count) const {
    return reinterpret_cast<vfloat>(bits(2 * word, column, count) | bits(2 * word + 1, column, count) << 16);
  }
};
#endif

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
