// Scores and their gradients, q·k and do·v: rows of one tensor times rows of another, which stand side by side in vectors. Where
// the instruction set multiplies pairs of bf16, both are multiplied as they are stored; else in f32. Included by the attention
// sources of this folder only.
#pragma once

#include "cpu/isa/attention_tile.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// One product of rows with columns: each of `width` elements, and m rows. `floats`: the rows in f32, where they are not read as
/// words.
struct Scores {
  StoredRows rows;
  FlashRows floats;
  std::int64_t m, width;
  float scale;
};

#if defined(__AVX512BF16__)

/// Whether rows of so many elements are read as words. The last of an odd number would need what lies behind it.
inline bool in_words(const StoredRows& rows, std::int64_t width) {
  return rows.storage == FlashStorage::bf16 && width > 0 && width % 2 == 0;
}

/// Words [word, word + lanes) of a row of `width` elements; zeros behind its end.
inline vfloat words_at(const BFloat16* row, std::int64_t word, std::int64_t width) {
  const std::int64_t left = width - 2 * word;
  if (left >= 2 * lanes) return reinterpret_cast<vfloat>(load_words(row + 2 * word));
  BFloat16 buffer[2 * lanes];
  for (int i = 0; i < 2 * lanes; ++i) buffer[i] = i < left ? row[2 * word + i] : BFloat16{};
  return reinterpret_cast<vfloat>(load_words(buffer));
}

/// to[width / 2, M-vectors of NV] = the words of rows[count, width] transposed; rows beyond count are zeros.
template <int NV>
__attribute__((noinline)) void pack_words(const StoredRows& from, std::int64_t count, std::int64_t width, float* to) {
  const auto* const rows = static_cast<const BFloat16*>(from.data);
  for (int v = 0; v < NV; ++v)
    for (std::int64_t word = 0; word < width / 2; word += lanes) {
      vfloat square[lanes];
      for (int i = 0; i < lanes; ++i)
        square[i] = v * lanes + i < count ? words_at(rows + (v * lanes + i) * from.stride, word, width) : vfloat{};
      transpose(square);
      const std::int64_t left = width / 2 - word;
      for (int i = 0; i < lanes && i < left; ++i) store(to + ((word + i) * NV + v) * lanes, square[i]);
    }
}

using Word = std::uint32_t __attribute__((may_alias, aligned(2)));

template <int MR, int NV>
inline void word_tile(const Scores& s, std::int64_t row, const float* columns, float* c) {
  vfloat sum[MR][NV]{};
  const auto* const a = static_cast<const BFloat16*>(s.rows.data) + row * s.rows.stride;
  for (std::int64_t e = 0; e < s.width; e += 2, columns += NV * lanes) {
    vuint x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) x[v] = load_words(columns + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const vuint y = splat_bits(*reinterpret_cast<const Word*>(a + r * s.rows.stride + e));
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[r][v] = dot_words(sum[r][v], y, x[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(c + ((row + r) * NV + v) * lanes, sum[r][v] * s.scale);
}

template <int MR, int NV>
inline void word_tiles_from(const Scores& s, std::int64_t row, const float* columns, float* c) {
  for (; row + MR <= s.m; row += MR) word_tile<MR, NV>(s, row, columns, c);
  if constexpr (MR > 1) {
    if (row < s.m) word_tiles_from<fewer_rows(MR), NV>(s, row, columns, c);
  }
}

#else
constexpr bool in_words(const StoredRows&, std::int64_t) { return false; }
#endif

/// Packs `count` rows as the columns of multiply_scores with the same width, storage and scale.
template <int NV>
void pack_columns(const StoredRows& from, std::int64_t count, std::int64_t width, float scale, float* to) {
#if defined(__AVX512BF16__)
  if (in_words(from, width)) return pack_words<NV>(from, count, width, to);
#endif
  pack_transposed<NV>(from, count, width, scale, to);
}

/// c[m, NV vectors] = scale · rows · columns.
template <int NV>
__attribute__((noinline)) void multiply_scores(const Scores& s, const float* columns, float* c) {
#if defined(__AVX512BF16__)
  if (in_words(s.rows, s.width)) return word_tiles_from<tile_rows<NV>, NV>(s, 0, columns, c);
#endif
  multiply<NV, false>({s.floats.data, s.floats.stride, columns, NV * lanes, c, NV * lanes, s.m, s.width, false, nullptr});
}

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
