// Arguments of the softmax layer.
#include "ops/softmax/check.hpp"

#include "core/check.hpp"

namespace everglow::softmax {

void check(const SoftmaxQuery& query) {
  constexpr std::string_view where = "softmax.plan";
  const DType dtype = query.description.dtype;
  require(dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(dtype));
  require(query.sizes.rows >= 0, ErrorCode::invalid_argument, where, "rows: expected 0 or more, got ", query.sizes.rows);
  require(query.sizes.columns >= 0, ErrorCode::invalid_argument, where, "columns: expected 0 or more, got ", query.sizes.columns);
  require_countable(where, "rows x columns", {query.sizes.rows, query.sizes.columns});
  require(query.description.masked_row <= MaskedRow::zero, ErrorCode::invalid_argument, where,
          "masked_row: expected nan or zero, got ", static_cast<int>(query.description.masked_row));
}

namespace {

/// A tensor whose rows and columns fit the plan's.
void check_rows(std::string_view where, std::string_view argument, const SoftmaxQuery& query, const ConstTensorView& view) {
  require_tensor(where, argument, view, {-1, query.sizes.columns}, query.description.dtype, query.device.device);
  require(view.size(0) <= query.sizes.rows, ErrorCode::invalid_argument, where, argument, ": expected at most ", query.sizes.rows,
          " rows, got ", view.size(0));
  require_unit_stride(where, argument, view);
}

/// In place is the same memory with the same strides; any other overlap is refused.
void check_in_place(std::string_view where, std::string_view written, const TensorView& a, std::string_view other,
                    const ConstTensorView& b) {
  if (a.data == b.data && a.strides[0] == b.strides[0]) return;
  require_apart(where, written, a, other, b);
}

}  // namespace

SoftmaxForward check(const SoftmaxQuery& query, const SoftmaxForward& tensors) {
  constexpr std::string_view where = "softmax.forward";
  const SoftmaxForward t{folded(where, "x", tensors.x), folded(where, "y", tensors.y)};
  check_rows(where, "x", query, t.x);
  check_rows(where, "y", query, t.y);
  require_tensor(where, "y", t.y, {t.x.size(0), t.x.size(1)}, t.x.dtype, t.x.device);
  require_no_self_overlap(where, "y", t.y);
  check_in_place(where, "y", t.y, "x", t.x);
  return t;
}

SoftmaxBackward check(const SoftmaxQuery& query, const SoftmaxBackward& tensors) {
  constexpr std::string_view where = "softmax.backward";
  const SoftmaxBackward t{folded(where, "y", tensors.y), folded(where, "dy", tensors.dy), folded(where, "dx", tensors.dx)};
  check_rows(where, "y", query, t.y);
  check_rows(where, "dy", query, t.dy);
  check_rows(where, "dx", query, t.dx);
  require_tensor(where, "dy", t.dy, {t.y.size(0), t.y.size(1)}, t.y.dtype, t.y.device);
  require_tensor(where, "dx", t.dx, {t.y.size(0), t.y.size(1)}, t.y.dtype, t.y.device);
  require_no_self_overlap(where, "dx", t.dx);
  check_in_place(where, "dx", t.dx, "dy", t.dy);
  check_in_place(where, "dx", t.dx, "y", t.y);
  return t;
}

}  // namespace everglow::softmax
