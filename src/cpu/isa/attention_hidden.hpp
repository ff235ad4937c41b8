// A pair of a query and a key whose score is -inf is hidden: it takes no part, whatever the query and the key hold. Its probability
// is 0, but 0 times Inf or NaN is not. A tile that has hidden pairs and such rows leaves these rows out of its products and adds
// them pair by pair; others pay for looking at each row once. Internal linkage, as core/simd.hpp. Included by the attention sources
// of this folder only.
#pragma once

#include "core/mutant.hpp"
#include "cpu/isa/attention_tile.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// Bit i stands for row i of a tile.
using RowSet = std::uint64_t;
static_assert(block_keys <= 64 && block_queries <= 64, "the rows of a tile fit into the bits of a RowSet");

/// The rows that hold an Inf or a NaN. Rows are whole vectors, as `gathered` makes them.
__attribute__((noinline)) RowSet rows_not_finite(const FlashRows& rows, std::int64_t count, std::int64_t width) {
  constexpr std::int32_t exponent = 0x7F800000;
  const auto look_at = [&](std::int64_t begin, std::int64_t end) {
    vint found{};
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t e = 0; e < width; e += lanes)
        found |= (reinterpret_cast<vint>(load(rows.data + i * rows.stride + e)) & exponent) == exponent;
    std::int32_t any = 0;
    for (int i = 0; i < lanes; ++i) any |= found[i];
    return any != 0;
  };
  if (mutant("attention.hidden_rows") || !look_at(0, count)) return 0;
  RowSet set = 0;
  for (std::int64_t i = 0; i < count; ++i) set |= static_cast<RowSet>(look_at(i, i + 1)) << i;
  return set;
}

/// The queries that each key of a tile is hidden from.
struct HiddenPairs {
  RowSet queries[block_keys];

  /// By scores p[keys, NV vectors] and by what each query sees of the keys from `key` on.
  template <int NV>
  __attribute__((noinline)) void find(const float* p, std::int64_t key, std::int64_t keys, const Sight<NV>& sight) {
    for (std::int64_t j = 0; j < keys; ++j) {
      queries[j] = 0;
      for (int v = 0; v < NV; ++v) {
        const vint hidden = (load(p + (j * NV + v) * lanes) == -infinity()) | ~sight.sees(key + j, v);
        for (int i = 0; i < lanes; ++i) queries[j] |= static_cast<RowSet>(hidden[i] != 0) << (v * lanes + i);
      }
    }
  }
  bool has(std::int64_t query, std::int64_t key) const { return (queries[key] >> query & 1) != 0; }
};

/// As multiply_wide, where the rows of B in `apart` reach only the elements (row, column) of C with !hidden(row, column, k).
template <bool ATransposed, class Hidden>
__attribute__((noinline)) void multiply_apart(const Product& p, std::int64_t vectors, RowSet apart, const Hidden& hidden) {
  const auto a_at = [&](std::int64_t row, std::int64_t k) { return p.a + (ATransposed ? k * p.lda + row : row * p.lda + k); };
  Product part = p;
  for (std::int64_t k = 0;; ++k) {
    part.a = a_at(0, k), part.b = p.b + k * p.ldb, part.k = 0;
    while (k + part.k < p.k && (apart >> (k + part.k) & 1) == 0) ++part.k;
    multiply_wide<ATransposed>(part, vectors);
    part.accumulate = true, part.rescale = nullptr;
    k += part.k;
    if (k == p.k) return;
    for (std::int64_t row = 0; row < p.m; ++row)
      for (std::int64_t column = 0; column < vectors * lanes; ++column)
        if (!hidden(row, column, k)) p.c[row * p.ldc + column] += *a_at(row, k) * p.b[k * p.ldb + column];
  }
}

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
