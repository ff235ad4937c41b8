// Activations and their derivatives in double.
#pragma once

#include <everglow/linear.hpp>
#include "core/mutant.hpp"

#include <cmath>
#include <numbers>

namespace everglow::reference {

inline double activate(Activation activation, double z) {
  switch (activation) {
    case Activation::none:
      return z;
    case Activation::relu:
      return z < 0 ? 0 : z;  // NaN stays NaN
    case Activation::gelu_tanh:
      return 0.5 * z * (1 + std::tanh(std::sqrt(2 * std::numbers::inv_pi) * (z + 0.044715 * z * z * z)));
    case Activation::gelu_erf:
      return 0.5 * z * std::erfc(-z / std::numbers::sqrt2);
    case Activation::silu:
      return z / (1 + std::exp(-z));
  }
  return z;
}

/// d act(z) / d z; 0 at the corner of relu.
inline double activation_slope(Activation activation, double z) {
  switch (activation) {
    case Activation::none:
      return 1;
    case Activation::relu:
      return z > 0 ? flipped("pointwise.reference_relu_slope_sign", 1.0) : 0;
    case Activation::gelu_tanh: {
      const double root = std::sqrt(2 * std::numbers::inv_pi), t = std::tanh(root * (z + 0.044715 * z * z * z));
      return 0.5 * (1 + t) +
             flipped("pointwise.reference_gelu_tanh_slope_sign", 0.5 * z * (1 - t * t) * root * (1 + 3 * 0.044715 * z * z));
    }
    case Activation::gelu_erf:
      return 0.5 * std::erfc(-z / std::numbers::sqrt2) +
             dropped("pointwise.reference_gelu_erf_slope_lacks_a_term",
                     z * std::exp(-0.5 * z * z) * std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-z));
      return s * (1 + flipped("pointwise.reference_silu_slope_sign", z * (1 - s)));
    }
  }
  return 1;
}

}  // namespace everglow::reference
