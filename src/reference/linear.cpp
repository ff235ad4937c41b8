// The linear layer in plain loops: products in double, the activation and its gradient by their definitions. Serves every dtype.
#include "core/arena.hpp"
#include "core/mutant.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <cmath>
#include <numbers>

namespace everglow::reference {
namespace {

const double sqrt_2_over_pi = std::sqrt(2 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }
double normal_density(double z) { return std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi); }
double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

double activate(Activation activation, double z) {
  switch (activation) {
    case Activation::none:
      return z;
    case Activation::relu:
      return z < 0 ? 0 : z;
    case Activation::gelu_tanh:
      return 0.5 * z * (1 + std::tanh(sqrt_2_over_pi * (z + gelu_cubic * z * z * z)));
    case Activation::gelu_erf:
      return z * normal_cdf(z);
    case Activation::silu:
      return z * sigmoid(z);
  }
  return z;
}

/// d act(z) / dz. At 0 relu's is 0.
double slope(Activation activation, double z) {
  switch (activation) {
    case Activation::none:
      return 1;
    case Activation::relu:
      return z <= 0 ? 0 : flipped("linear.relu_slope", 1.0);
    case Activation::gelu_tanh: {
      const double t = std::tanh(sqrt_2_over_pi * (z + gelu_cubic * z * z * z));
      return 0.5 * (1 + t) +
             dropped("linear.gelu_tanh_second_term", 0.5 * z * (1 - t * t) * sqrt_2_over_pi * (1 + 3 * gelu_cubic * z * z));
    }
    case Activation::gelu_erf:
      return normal_cdf(z) + flipped("linear.gelu_erf_density", z * normal_density(z));
    case Activation::silu:
      return sigmoid(z) * (1 + dropped("linear.silu_second_term", z * (1 - sigmoid(z))));
  }
  return 1;
}

/// The weight between one output and one input in either layout.
double weight_at(const LinearQuery& q, const ConstTensorView& weight, std::int64_t output, std::int64_t input) {
  return q.description.layout == LinearLayout::outputs_inputs ? read(weight, output, input) : read(weight, input, output);
}

void forward(const LinearQuery& q, const LinearForward& t, void*, const Stream&) {
  for (std::int64_t b = 0; b < t.x.size(0); ++b)
    for (std::int64_t o = 0; o < q.description.outputs; ++o) {
      double z = t.bias.given() ? read(t.bias, o) : 0;
      for (std::int64_t i = 0; i < q.description.inputs; ++i) z += read(t.x, b, i) * weight_at(q, t.weight, o, i);
      if (t.preactivation.given()) write(t.preactivation, z, b, o);
      write(t.y, activate(q.description.activation, z), b, o);
    }
}

/// dy · slope for all elements, in the workspace: both products and the bias read each of them many times.
const double* preactivation_gradient(const LinearQuery& q, const LinearBackward& t, void* workspace) {
  auto* dz = static_cast<double*>(workspace);
  const bool plain = q.description.activation == Activation::none;
  for (std::int64_t b = 0; b < t.dy.size(0); ++b)
    for (std::int64_t o = 0; o < q.description.outputs; ++o)
      dz[b * q.description.outputs + o] =
          read(t.dy, b, o) * (plain ? 1 : slope(q.description.activation, read(t.preactivation, b, o)));
  return dz;
}

void input_gradient(const LinearQuery& q, const LinearBackward& t, const double* dz) {
  for (std::int64_t b = 0; b < t.dy.size(0); ++b)
    for (std::int64_t i = 0; i < q.description.inputs; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < q.description.outputs; ++o)
        sum += dz[b * q.description.outputs + o] * weight_at(q, t.weight, o, i);
      write(t.dx, flipped("linear.dx_sign", sum), b, i);
    }
}

void weight_gradient(const LinearQuery& q, const LinearBackward& t, const double* dz) {
  const bool outputs_first = q.description.layout == LinearLayout::outputs_inputs;
  for (std::int64_t o = 0; o < q.description.outputs; ++o)
    for (std::int64_t i = 0; i < q.description.inputs; ++i) {
      const std::int64_t row = outputs_first ? o : i, column = outputs_first ? i : o;
      double sum = t.accumulate ? dropped("linear.dweight_forgets", read(t.dweight, row, column)) : 0;
      for (std::int64_t b = 0; b < t.dy.size(0); ++b)
        sum += flipped("linear.dweight_sign", dz[b * q.description.outputs + o] * read(t.x, b, i));
      write(t.dweight, sum, row, column);
    }
}

void backward(const LinearQuery& q, const LinearBackward& t, void* workspace, const Stream&) {
  const double* dz = preactivation_gradient(q, t, workspace);
  if (t.dx.given()) input_gradient(q, t, dz);
  if (t.dweight.given()) weight_gradient(q, t, dz);
  if (!t.dbias.given()) return;
  for (std::int64_t o = 0; o < q.description.outputs; ++o) {
    double sum = t.accumulate ? dropped("linear.dbias_forgets", read(t.dbias, o)) : 0;
    for (std::int64_t b = 0; b < t.dy.size(0); ++b) sum += flipped("linear.dbias_sign", dz[b * q.description.outputs + o]);
    write(t.dbias, sum, o);
  }
}

Footprint footprint(const LinearQuery& q) {
  Arena arena;
  if (q.description.training) arena.take<double>(q.sizes.batch * q.description.outputs);
  return {.workspace = arena.bytes()};
}

}  // namespace

const LinearRow linear{.name = "reference.linear",
                       .accepts = [](const LinearQuery&) { return accept(); },
                       .footprint = footprint,
                       .forward = forward,
                       .backward = backward};

}  // namespace everglow::reference
