// Which keys a query sees: lengths, the causal diagonal and the window together leave one interval of keys for each query.
#pragma once

#include "core/rows.hpp"

#include <algorithm>
#include <cstdint>

namespace everglow {

/// Keys [begin, end).
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

/// The lengths of one batch row, and the key that stands on the diagonal of query 0.
struct AttentionRows {
  std::int64_t queries = 0, keys = 0, diagonal = 0;
};

inline std::int64_t length_at(const ConstTensorView& lengths, std::int64_t b, std::int64_t all) {
  return lengths.given() ? static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]] : all;
}

/// `tensors` is an AttentionForward or an AttentionBackward.
template <class Tensors>
AttentionRows attention_rows(const AttentionDescription& d, const Tensors& tensors, std::int64_t b) {
  AttentionRows rows{length_at(tensors.query_lengths, b, tensors.q.size(1)), length_at(tensors.key_lengths, b, tensors.k.size(1)),
                     0};
  if (d.alignment == CausalAlignment::bottom_right) rows.diagonal = rows.keys - rows.queries;
  return rows;
}

inline KeyRange keys_of(const AttentionDescription& d, const AttentionRows& rows, std::int64_t query) {
  KeyRange range{0, rows.keys};
  const std::int64_t centre = query + rows.diagonal;
  if (d.causal) range.end = std::min(range.end, centre + 1);
  if (d.window_right >= 0 && d.window_right < rows.keys) range.end = std::min(range.end, centre + d.window_right + 1);
  if (d.window_left >= 0 && d.window_left < rows.keys + rows.queries)
    range.begin = std::max<std::int64_t>(0, centre - d.window_left);
  range.end = std::max(range.end, range.begin);
  return range;
}

}  // namespace everglow
