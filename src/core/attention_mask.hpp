// Where the rows of one sequence lie and which keys a query sees: lengths, the causal diagonal and the window together leave one
// interval of keys for each query. Packed batches become batches of one row of memory, in which each sequence has its first row.
#pragma once

#include "core/rows.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace everglow {

/// Keys [begin, end).
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

/// One sequence: its lengths, its rows in memory, and the key that stands on the diagonal of query 0.
struct AttentionRows {
  std::int64_t queries = 0, keys = 0;          // by the lengths
  std::int64_t all_queries = 0, all_keys = 0;  // in memory: those past a length are padding
  std::int64_t first_query = 0, first_key = 0;
  std::int64_t diagonal = 0;
};

inline std::int64_t length_at(const ConstTensorView& lengths, std::int64_t b, std::int64_t all) {
  return lengths.given() ? static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]] : all;
}

/// `tensors` is an AttentionForward or an AttentionBackward that `unpacked` has seen.
template <class Tensors>
AttentionRows attention_rows(const AttentionDescription& d, const Tensors& tensors, std::int64_t b) {
  AttentionRows rows;
  if (d.packed) {
    rows.first_query = length_at(tensors.cu_queries, b, 0), rows.first_key = length_at(tensors.cu_keys, b, 0);
    rows.queries = rows.all_queries = length_at(tensors.cu_queries, b + 1, 0) - rows.first_query;
    rows.keys = rows.all_keys = length_at(tensors.cu_keys, b + 1, 0) - rows.first_key;
  } else {
    rows.all_queries = tensors.q.size(1), rows.all_keys = tensors.k.size(1);
    rows.queries = length_at(tensors.query_lengths, b, rows.all_queries);
    rows.keys = length_at(tensors.key_lengths, b, rows.all_keys);
  }
  if (d.alignment == CausalAlignment::bottom_right) rows.diagonal = rows.keys - rows.queries;
  return rows;
}

/// What a bias and the elements of dropout count in: the sizes of the run, or of a plan for packed batches.
struct AttentionGrid {
  std::int64_t batch = 0, queries = 0, keys = 0;
};
template <class Tensors>
AttentionGrid attention_grid(const AttentionQuery& query, const Tensors& tensors) {
  if (query.description.packed) return {tensors.cu_queries.size(0) - 1, query.sizes.queries, query.sizes.keys};
  return {tensors.q.size(0), tensors.q.size(1), tensors.k.size(1)};
}

/// A view [rows, ...] as [1, rows, ...] whose batch rows all have the same memory.
template <class Void>
void add_batch(BasicTensorView<Void>& view) {
  if (!view.given()) return;
  std::copy_backward(view.shape.begin(), view.shape.end() - 1, view.shape.end());
  std::copy_backward(view.strides.begin(), view.strides.end() - 1, view.strides.end());
  ++view.rank, view.shape[0] = 1, view.strides[0] = 0;
}
/// Packed tensors as tensors with a batch dimension; others as they are.
template <class Tensors>
Tensors unpacked(const AttentionDescription& d, Tensors t) {
  if (!d.packed) return t;
  add_batch(t.q), add_batch(t.k), add_batch(t.v), add_batch(t.o), add_batch(t.lse);
  if constexpr (std::is_same_v<Tensors, AttentionBackward>)
    add_batch(t.d_o), add_batch(t.dlse), add_batch(t.dq), add_batch(t.dk), add_batch(t.dv);
  return t;
}

inline KeyRange keys_of(const AttentionDescription& d, const AttentionRows& rows, std::int64_t query) {
  KeyRange range{0, rows.keys};
  const std::int64_t centre = query + rows.diagonal;
  if (d.causal) range.end = std::min(range.end, centre + 1);
  if (d.window_right >= 0 && d.window_right < rows.keys + rows.queries)
    range.end = std::min(range.end, centre + d.window_right + 1);
  if (d.window_left >= 0 && d.window_left < rows.keys + rows.queries)
    range.begin = std::max<std::int64_t>(0, centre - d.window_left);
  range.end = std::max(range.end, range.begin);
  return range;
}

}  // namespace everglow
