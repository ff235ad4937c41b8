// Arguments of the linear layer.
#include "ops/linear/check.hpp"

#include "core/check.hpp"

namespace everglow::linear {
namespace {

void check_weight(std::string_view where, const LinearQuery& query, const ConstTensorView& weight) {
  const auto& d = query.description;
  if (d.layout == LinearLayout::outputs_inputs)
    require_tensor(where, "weight", weight, {d.outputs, d.inputs}, d.dtype, query.device.device);
  else
    require_tensor(where, "weight", weight, {d.inputs, d.outputs}, d.dtype, query.device.device);
}

void check_packed_bytes(std::string_view where, const LinearQuery& query, const PackedWeights& packed, const Packing& packing) {
  require(packing.bytes > 0, ErrorCode::unsupported, where,
          "packed: expected none, because the row of this plan has no packed form (packed_bytes() is 0)");
  require_bytes(where, "packed.bytes", packed.bytes, packing.bytes, query.device.device);
}

void check_packed(std::string_view where, const LinearQuery& query, const PackedWeights& packed, const Packing& packing) {
  check_packed_bytes(where, query, packed, packing);
  require(packed.key == packing.key, ErrorCode::invalid_argument, where, "packed.key: expected ", packing.key, ", got ", packed.key,
          " (weights packed by another row or for another description)");
}

/// A [rows, columns] tensor, of any strides.
void check_rows(std::string_view where, const LinearQuery& query, const NamedView& named, std::int64_t rows, std::int64_t columns) {
  require_tensor(where, named.name, named.view, {rows, columns}, query.description.dtype, query.device.device);
}

std::int64_t check_batch(std::string_view where, const LinearQuery& query, const NamedView& named, std::int64_t columns) {
  check_rows(where, query, named, -1, columns);
  require(named.view.size(0) <= query.sizes.batch, ErrorCode::invalid_argument, where, named.name, ": expected at most ",
          query.sizes.batch, " rows, got ", named.view.size(0));
  return named.view.size(0);
}

ConstTensorView bytes_of(const PackedWeights* packed) {
  return packed != nullptr ? ConstTensorView(packed->bytes) : ConstTensorView();
}

}  // namespace

void check(const LinearQuery& query) {
  constexpr std::string_view where = "linear.plan";
  const auto& d = query.description;
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  require(d.inputs >= 0, ErrorCode::invalid_argument, where, "inputs: expected 0 or more, got ", d.inputs);
  require(d.outputs >= 0, ErrorCode::invalid_argument, where, "outputs: expected 0 or more, got ", d.outputs);
  require(query.sizes.batch >= 0, ErrorCode::invalid_argument, where, "batch: expected 0 or more, got ", query.sizes.batch);
  require_countable(where, "inputs x outputs", {d.inputs, d.outputs});
  require_countable(where, "batch x inputs", {query.sizes.batch, d.inputs});
  require_countable(where, "batch x outputs", {query.sizes.batch, d.outputs});
  require(d.activation <= Activation::silu, ErrorCode::invalid_argument, where,
          "activation: expected none, relu, gelu_tanh, gelu_erf or silu, got ", static_cast<int>(d.activation));
  require(d.layout <= LinearLayout::inputs_outputs, ErrorCode::invalid_argument, where,
          "layout: expected outputs_inputs or inputs_outputs, got ", static_cast<int>(d.layout));
}

void check(const LinearQuery& query, const LinearSizes& sizes) {
  require(sizes.batch >= 0 && sizes.batch <= query.sizes.batch, ErrorCode::invalid_argument, "linear.prepare",
          "batch: expected 0 ... ", query.sizes.batch, ", got ", sizes.batch);
}

void check(const LinearQuery& query, const ConstTensorView& weight, const PackedWeights& packed, const Packing& packing) {
  constexpr std::string_view where = "linear.pack";
  check_weight(where, query, weight);
  check_packed_bytes(where, query, packed, packing);
  require_apart(where, "packed.bytes", packed.bytes, "weight", weight);
}

LinearForward check(const LinearQuery& query, const LinearForward& tensors, const Packing& packing) {
  constexpr std::string_view where = "linear.forward";
  const auto& d = query.description;
  LinearForward t = tensors;
  t.x = folded(where, "x", tensors.x);
  t.y = folded(where, "y", tensors.y);
  t.preactivation = folded(where, "preactivation", tensors.preactivation);
  const std::int64_t batch = check_batch(where, query, {"x", t.x}, d.inputs);
  check_rows(where, query, {"y", t.y}, batch, d.outputs);
  if (t.preactivation.given() || (d.training && d.activation != Activation::none))
    check_rows(where, query, {"preactivation", t.preactivation}, batch, d.outputs);
  require_optional(where, "bias", t.bias, {d.outputs}, d.dtype, query.device.device);
  if (t.packed != nullptr) {
    check_packed(where, query, *t.packed, packing);
    t.weight = {};
  } else {
    check_weight(where, query, t.weight);
  }
  const NamedView written[] = {{"y", t.y}, {"preactivation", t.preactivation}};
  const NamedView only_read[] = {{"x", t.x}, {"weight", t.weight}, {"bias", t.bias}, {"packed.bytes", bytes_of(t.packed)}};
  require_all_apart(where, written, only_read);
  return t;
}

LinearBackward check(const LinearQuery& query, const LinearBackward& tensors, const Packing& packing) {
  constexpr std::string_view where = "linear.backward";
  const auto& d = query.description;
  require(d.training, ErrorCode::invalid_argument, where, "training: expected a plan made with training = true");
  LinearBackward t = tensors;
  t.dy = folded(where, "dy", tensors.dy);
  t.x = folded(where, "x", tensors.x);
  t.preactivation = folded(where, "preactivation", tensors.preactivation);
  t.dx = folded(where, "dx", tensors.dx);
  const std::int64_t batch = check_batch(where, query, {"dy", t.dy}, d.outputs);
  if (t.x.given() || t.dweight.given()) check_rows(where, query, {"x", t.x}, batch, d.inputs);
  if (t.preactivation.given() || d.activation != Activation::none)
    check_rows(where, query, {"preactivation", t.preactivation}, batch, d.outputs);
  if (t.dx.given()) check_rows(where, query, {"dx", t.dx}, batch, d.inputs);
  if (t.packed != nullptr) {
    check_packed(where, query, *t.packed, packing);
    t.weight = {};
  } else if (t.weight.given() || t.dx.given()) {
    check_weight(where, query, t.weight);
  }
  if (d.layout == LinearLayout::outputs_inputs)
    require_gradient(where, "dweight", t.dweight, {d.outputs, d.inputs}, d.dtype, query.device.device);
  else
    require_gradient(where, "dweight", t.dweight, {d.inputs, d.outputs}, d.dtype, query.device.device);
  require_gradient(where, "dbias", t.dbias, {d.outputs}, d.dtype, query.device.device);
  const NamedView written[] = {{"dx", t.dx}, {"dweight", t.dweight}, {"dbias", t.dbias}};
  const NamedView only_read[] = {
      {"dy", t.dy}, {"x", t.x}, {"weight", t.weight}, {"preactivation", t.preactivation}, {"packed.bytes", bytes_of(t.packed)}};
  require_all_apart(where, written, only_read);
  return t;
}

}  // namespace everglow::linear
