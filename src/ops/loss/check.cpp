// Arguments of the classifier loss.
#include "ops/loss/check.hpp"

#include "core/check.hpp"
#include "ops/index_list.hpp"

namespace everglow::loss {

void check(const LossQuery& query) {
  constexpr std::string_view where = "loss.plan";
  const LossDescription& d = query.description;
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  require(d.inputs >= 0, ErrorCode::invalid_argument, where, "inputs: expected 0 or more, got ", d.inputs);
  require(d.classes >= 0, ErrorCode::invalid_argument, where, "classes: expected 0 or more, got ", d.classes);
  require(d.smoothing >= 0 && d.smoothing <= 1, ErrorCode::invalid_argument, where, "smoothing: expected 0 ... 1, got ",
          d.smoothing);
  require(query.sizes.rows >= 0, ErrorCode::invalid_argument, where, "rows: expected 0 or more, got ", query.sizes.rows);
  require_countable(where, "classes x inputs", {d.classes, d.inputs});
  require_countable(where, "rows x inputs", {query.sizes.rows, d.inputs});
  require_countable(where, "rows x classes", {query.sizes.rows, d.classes});
}

namespace {

/// A matrix whose columns are contiguous and whose rows follow one another without overlap.
void require_matrix_strides(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  require_unit_stride(where, argument, view);
  require(!view.given() || view.size(0) <= 1 || view.stride(0) >= view.size(1), ErrorCode::invalid_argument, where, argument,
          ": expected rows at least ", view.given() ? view.size(1) : 0, " elements apart, got stride ",
          view.given() ? view.stride(0) : 0);
}

LossForward check_forward(std::string_view where, const LossQuery& query, const LossForward& tensors) {
  const LossDescription& d = query.description;
  const Device device = query.device.device;
  LossForward t = tensors;
  t.x = folded(where, "x", tensors.x);
  require_tensor(where, "x", t.x, {-1, d.inputs}, d.dtype, device);
  require(t.x.size(0) <= query.sizes.rows, ErrorCode::invalid_argument, where, "x: expected at most ", query.sizes.rows,
          " rows, got ", t.x.size(0));
  require_unit_stride(where, "x", t.x);
  require_tensor(where, "weight", t.weight, {d.classes, d.inputs}, d.dtype, device);
  require_matrix_strides(where, "weight", t.weight);
  require_optional(where, "bias", t.bias, {d.classes}, d.dtype, device);
  require_unit_stride(where, "bias", t.bias);
  t.targets = index_list(where, "targets", tensors.targets, device);
  require(t.targets.size(0) == t.x.size(0), ErrorCode::invalid_argument, where, "targets: expected one for each of the ",
          t.x.size(0), " rows of x, got ", t.targets.size(0));
  require_indices(where, "targets", t.targets, d.classes, d.ignore_index);
  require_tensor(where, "loss", t.loss, {1}, d.dtype == DType::f64 ? DType::f64 : DType::f32, device);
  require_optional(where, "count", t.count, {1}, DType::f32, device);
  require_optional(where, "status", t.status, {1}, DType::i32, device);
  return t;
}

}  // namespace

LossForward check(const LossQuery& query, const LossForward& tensors) {
  constexpr std::string_view where = "loss.forward";
  const LossForward t = check_forward(where, query, tensors);
  const NamedView written[] = {{"loss", t.loss}, {"count", t.count}, {"status", t.status}};
  const NamedView others[] = {{"x", t.x}, {"weight", t.weight}, {"bias", t.bias}, {"targets", t.targets}};
  require_all_apart(where, written, others);
  return t;
}

LossBackward check(const LossQuery& query, const LossBackward& tensors) {
  constexpr std::string_view where = "loss.forward_backward";
  const LossDescription& d = query.description;
  const Device device = query.device.device;
  require(d.training, ErrorCode::invalid_argument, where, "training: expected a plan that was made with training, got one without");
  LossBackward t = tensors;
  t.forward = check_forward(where, query, tensors.forward);
  require_optional(where, "scale", t.scale, {1}, DType::f32, device);
  t.dx = folded(where, "dx", tensors.dx);
  require_optional(where, "dx", t.dx, {t.forward.x.size(0), d.inputs}, d.dtype, device);
  require_unit_stride(where, "dx", t.dx);
  require_no_self_overlap(where, "dx", t.dx);
  require_gradient(where, "dweight", t.dweight, {d.classes, d.inputs}, d.dtype, device);
  require_matrix_strides(where, "dweight", t.dweight);
  require_gradient(where, "dbias", t.dbias, {d.classes}, d.dtype, device);
  require_unit_stride(where, "dbias", t.dbias);
  const LossForward& f = t.forward;
  const NamedView written[] = {{"loss", f.loss}, {"count", f.count},     {"status", f.status},
                               {"dx", t.dx},     {"dweight", t.dweight}, {"dbias", t.dbias}};
  const NamedView others[] = {{"x", f.x}, {"weight", f.weight}, {"bias", f.bias}, {"targets", f.targets}, {"scale", t.scale}};
  require_all_apart(where, written, others);
  return t;
}

}  // namespace everglow::loss
