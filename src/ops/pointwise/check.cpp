// Arguments of elementwise operations.
#include "ops/pointwise/check.hpp"

#include "core/check.hpp"

namespace everglow::pointwise {

void check(const PointwiseQuery& query) {
  constexpr std::string_view where = "pointwise.plan";
  const PointwiseDescription& d = query.description;
  const Pointwise op = d.operation;
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  require(op <= Pointwise::activation_gradient, ErrorCode::invalid_argument, where,
          "operation: expected copy ... activation_gradient, got ", static_cast<int>(op));
  require(d.activation <= Activation::silu, ErrorCode::invalid_argument, where,
          "activation: expected none, relu, gelu_tanh, gelu_erf or silu, got ", static_cast<int>(d.activation));
  require(query.sizes.elements >= 0, ErrorCode::invalid_argument, where, "elements: expected 0 or more, got ",
          query.sizes.elements);
  require_countable(where, "elements", {query.sizes.elements});
  require(d.dropout >= 0 && d.dropout <= 1, ErrorCode::invalid_argument, where, "dropout: expected 0 ... 1, got ", d.dropout);
  require(d.dropout == 0 || op == Pointwise::dropout, ErrorCode::invalid_argument, where,
          "dropout: expected 0 for an operation that drops nothing, got ", d.dropout);
  require(d.factor == 1 || op == Pointwise::scale || op == Pointwise::fill, ErrorCode::invalid_argument, where,
          "factor: expected 1 for an operation other than scale and fill, got ", d.factor);
  require(d.activation == Activation::none || op == Pointwise::activation || op == Pointwise::activation_gradient,
          ErrorCode::invalid_argument, where, "activation: expected none for an operation that applies none");
}

namespace {

/// In place is the same memory with the same dtype and strides; any other overlap is refused.
void check_in_place(std::string_view where, const TensorView& y, std::string_view other, const ConstTensorView& b) {
  bool same = b.given() && y.data == b.data && y.dtype == b.dtype;
  for (int i = 0; i < y.rank && same; ++i) same = y.shape[i] <= 1 || y.strides[i] == b.strides[i];
  if (!same) require_apart(where, "y", y, other, b);
}

}  // namespace

void check(const PointwiseQuery& query, const PointwiseRun& t) {
  constexpr std::string_view where = "pointwise.run";
  const PointwiseDescription& d = query.description;
  const Device device = query.device.device;
  const Pointwise op = d.operation;
  require(t.y.given(), ErrorCode::invalid_argument, where, "y: expected a tensor, got ", to_string(t.y));
  const std::span<const std::int64_t> shape(t.y.shape.data(), static_cast<std::size_t>(t.y.rank));
  require_tensor(where, "y", t.y, shape, d.dtype, device);
  require(t.y.elements() <= query.sizes.elements, ErrorCode::invalid_argument, where, "y: expected at most ", query.sizes.elements,
          " elements, got ", to_string(t.y));
  require_no_self_overlap(where, "y", t.y);
  if (op == Pointwise::fill) {
    require(!t.a.given(), ErrorCode::invalid_argument, where, "a: expected none for fill, got ", to_string(t.a));
  } else {
    const bool convertible = op == Pointwise::copy && t.a.dtype <= DType::f64;
    require_tensor(where, "a", t.a, shape, convertible ? t.a.dtype : d.dtype, device);
    check_in_place(where, t.y, "a", t.a);
  }
  const bool two = op == Pointwise::add || op == Pointwise::multiply || op == Pointwise::activation_gradient;
  if (two || (op == Pointwise::dropout && t.b.given())) {
    require_tensor(where, "b", t.b, shape, d.dtype, device);
    check_in_place(where, t.y, "b", t.b);
  } else {
    require(!t.b.given(), ErrorCode::invalid_argument, where, "b: expected none for this operation, got ", to_string(t.b));
  }
  require_dropout(where, op == Pointwise::dropout, {t.dropout_seed, t.dropout_offset, t.dropout_state}, device);
  if (t.dropout_state.given()) require_apart(where, "y", t.y, "dropout_state", t.dropout_state);
}

}  // namespace everglow::pointwise
