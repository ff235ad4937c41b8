// Problems of the linear layer and their tensors, shared by its proof and its tests.
#pragma once

#include "cases/case.hpp"
#include "cases/proof/tensor.hpp"

#include <everglow/linear.hpp>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace everglow::proof {

struct LinearProblem {
  LinearDescription description;
  LinearSizes sizes;
  bool bias = true;
};

inline Activation activation_of(const std::string& text) {
  const char* const names[] = {"none", "relu", "gelu_tanh", "gelu_erf", "silu"};
  const auto* found = std::find(std::begin(names), std::end(names), text);
  if (found == std::end(names)) throw std::invalid_argument("activation=" + text);
  return static_cast<Activation>(found - std::begin(names));
}

inline LinearProblem linear_problem_of(const cases::Case& c) {
  return {.description = {.inputs = c.integer("inputs", 1),
                          .outputs = c.integer("outputs", 1),
                          .dtype = parse_dtype(c.text("dtype", "f32")),
                          .layout = c.text("layout", "outputs_inputs") == "outputs_inputs" ? LinearLayout::outputs_inputs
                                                                                           : LinearLayout::inputs_outputs,
                          .activation = activation_of(c.text("activation", "none")),
                          .training = c.flag("training", true)},
          .sizes = {.batch = c.integer("batch", 1)},
          .bias = c.flag("bias", true)};
}

/// The tensors of one problem; `padding` elements are added to each row of all but the biases. Weight gradients have the dtype too,
/// unless another is named.
struct LinearTensors {
  HostTensor x, weight, bias, y, preactivation, dy, dx, dweight, dbias;
  LinearTensors(const LinearProblem& p, DType dtype, std::int64_t padding) : LinearTensors(p, dtype, padding, dtype) {}
  LinearTensors(const LinearProblem& p, DType dtype, std::int64_t padding, DType gradients) {
    const auto& d = p.description;
    const bool outputs_first = d.layout == LinearLayout::outputs_inputs;
    const std::int64_t b = p.sizes.batch, i = d.inputs, o = d.outputs;
    const auto matrix = [&](std::int64_t rows, std::int64_t columns, DType type) {
      return HostTensor(type, {rows, columns}, padding > 0 ? columns + padding : 0);
    };
    x = matrix(b, i, dtype), dx = matrix(b, i, dtype);
    y = matrix(b, o, dtype), preactivation = matrix(b, o, dtype), dy = matrix(b, o, dtype);
    weight = outputs_first ? matrix(o, i, dtype) : matrix(i, o, dtype);
    dweight = outputs_first ? matrix(o, i, gradients) : matrix(i, o, gradients);
    bias = HostTensor(dtype, {o}), dbias = HostTensor(gradients, {o});
  }
  LinearForward forward(const LinearProblem& p) const {
    return {.x = x,
            .weight = weight,
            .bias = p.bias ? ConstTensorView(bias) : ConstTensorView(),
            .y = y,
            .preactivation = p.description.training ? TensorView(preactivation) : TensorView()};
  }
  LinearBackward backward(bool accumulate = false) const {
    return {.dy = dy,
            .x = x,
            .weight = weight,
            .preactivation = preactivation,
            .dx = dx,
            .dweight = dweight,
            .dbias = dbias,
            .accumulate = accumulate};
  }
  void take_inputs(const LinearTensors& other) {
    x.set(other.x.values()), weight.set(other.weight.values()), bias.set(other.bias.values()), dy.set(other.dy.values());
  }
  bool guards_intact() const {
    return y.guards_intact() && preactivation.guards_intact() && dx.guards_intact() && dweight.guards_intact() &&
           dbias.guards_intact();
  }
};

inline LinearPlan plan_of(const LinearProblem& p, DType dtype, const PlanOptions& options,
                          const DeviceDescription& device = Device::cpu()) {
  LinearDescription d = p.description;
  d.dtype = dtype;
  return LinearPlan(d, p.sizes, device, options);
}

inline bool accepts(const LinearProblem& p, const std::string& row) {
  const LinearPlan any(p.description, p.sizes);
  for (const auto& entry : any.explain().rows)
    if (entry.name == row) return entry.taken || entry.reason.starts_with("accepts");
  return false;
}

}  // namespace everglow::proof
