// Names that cases and stored results give to choices of the layers.
#pragma once

#include <everglow/pointwise.hpp>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

namespace everglow::proof {

/// The choice whose name stands at its place in the list. Throws std::invalid_argument for another name.
template <class Choice, std::size_t N>
Choice named(std::string_view key, std::string_view value, const std::array<std::string_view, N>& names) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == value) return static_cast<Choice>(i);
  throw std::invalid_argument(std::string(key) + ": unknown name \"" + std::string(value) + '"');
}

inline Activation parse_activation(std::string_view value) {
  return named<Activation>("activation", value, std::array<std::string_view, 5>{"none", "relu", "gelu_tanh", "gelu_erf", "silu"});
}

inline Pointwise parse_pointwise(std::string_view value) {
  return named<Pointwise>(
      "operation", value,
      std::array<std::string_view, 8>{"copy", "add", "multiply", "scale", "fill", "dropout", "activation", "activation_gradient"});
}

}  // namespace everglow::proof
