// Arguments of the embedding.
#include "ops/embedding/check.hpp"

#include "core/check.hpp"
#include "ops/index_list.hpp"

#include <vector>

namespace everglow::embedding {

void check(const EmbeddingQuery& query) {
  constexpr std::string_view where = "embedding.plan";
  const EmbeddingDescription& d = query.description;
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  require(d.vocabulary >= 0, ErrorCode::invalid_argument, where, "vocabulary: expected 0 or more, got ", d.vocabulary);
  require(d.width >= 0, ErrorCode::invalid_argument, where, "width: expected 0 or more, got ", d.width);
  require(d.padding_index >= -1 && (d.padding_index < d.vocabulary || d.padding_index == -1), ErrorCode::invalid_argument, where,
          "padding_index: expected -1 or less than vocabulary ", d.vocabulary, ", got ", d.padding_index);
  require(query.sizes.indices >= 0, ErrorCode::invalid_argument, where, "indices: expected 0 or more, got ", query.sizes.indices);
  require_countable(where, "vocabulary x width", {d.vocabulary, d.width});
  require_countable(where, "indices x width", {query.sizes.indices, d.width});
}

namespace {

/// The indices as a list; at most as many as the plan is made for, each below the vocabulary.
ConstTensorView check_indices(std::string_view where, const EmbeddingQuery& query, const ConstTensorView& view) {
  const ConstTensorView list = index_list(where, "indices", view, query.device.device);
  require(list.size(0) <= query.sizes.indices, ErrorCode::invalid_argument, where, "indices: expected at most ",
          query.sizes.indices, ", got ", list.size(0));
  require_indices(where, "indices", list, query.description.vocabulary);
  return list;
}

/// The values must have the indices' shape and the width after it; returns them as [n, width].
template <class View>
View check_values(std::string_view where, std::string_view argument, const EmbeddingQuery& query, const ConstTensorView& indices,
                  const View& view) {
  std::vector<std::int64_t> shape(indices.shape.begin(), indices.shape.begin() + indices.rank);
  shape.push_back(query.description.width);
  require_tensor(where, argument, view, std::span<const std::int64_t>(shape), query.description.dtype, query.device.device);
  require_unit_stride(where, argument, view);
  return folded(where, argument, view);
}

void check_status_view(std::string_view where, const EmbeddingQuery& query, const TensorView& status,
                       std::span<const NamedView> others) {
  require_optional(where, "status", status, {1}, DType::i32, query.device.device);
  if (!status.given()) return;
  const NamedView written[] = {{"status", status}};
  require_all_apart(where, written, others);
}

}  // namespace

EmbeddingForward check(const EmbeddingQuery& query, const EmbeddingForward& tensors) {
  constexpr std::string_view where = "embedding.forward";
  const EmbeddingDescription& d = query.description;
  EmbeddingForward t = tensors;
  t.indices = check_indices(where, query, tensors.indices);
  require_tensor(where, "table", t.table, {d.vocabulary, d.width}, d.dtype, query.device.device);
  require_unit_stride(where, "table", t.table);
  t.y = check_values(where, "y", query, tensors.indices, tensors.y);
  require_no_self_overlap(where, "y", t.y);
  require_apart(where, "y", t.y, "table", t.table);
  require_apart(where, "y", t.y, "indices", t.indices);
  const NamedView others[] = {{"y", t.y}, {"table", t.table}, {"indices", t.indices}};
  check_status_view(where, query, t.status, others);
  return t;
}

EmbeddingBackward check(const EmbeddingQuery& query, const EmbeddingBackward& tensors) {
  constexpr std::string_view where = "embedding.backward";
  const EmbeddingDescription& d = query.description;
  EmbeddingBackward t = tensors;
  t.indices = check_indices(where, query, tensors.indices);
  t.dy = check_values(where, "dy", query, tensors.indices, tensors.dy);
  require(t.dtable.given(), ErrorCode::invalid_argument, where, "dtable: expected [", d.vocabulary, ", ", d.width, "], got ",
          to_string(t.dtable));
  require_gradient(where, "dtable", t.dtable, {d.vocabulary, d.width}, d.dtype, query.device.device);
  require_unit_stride(where, "dtable", t.dtable);
  require_apart(where, "dtable", t.dtable, "dy", t.dy);
  require_apart(where, "dtable", t.dtable, "indices", t.indices);
  const NamedView others[] = {{"dtable", t.dtable}, {"dy", t.dy}, {"indices", t.indices}};
  check_status_view(where, query, t.status, others);
  return t;
}

}  // namespace everglow::embedding
