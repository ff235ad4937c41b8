// What the tests of the small layers share: names of operations, strided views as lists of values, the rows that accept a
// description, and the text of an error.
#pragma once

#include "support/tensor.hpp"

#include <everglow/pointwise.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace everglow::test {

inline Pointwise parse_pointwise(const std::string& text) {
  const std::vector<std::string> names{"copy", "add", "multiply", "scale", "fill", "dropout", "activation", "activation_gradient"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Pointwise>(i);
  throw std::invalid_argument("operation: unknown name " + text);
}

inline Activation parse_activation(const std::string& text) {
  const std::vector<std::string> names{"none", "relu", "gelu_tanh", "gelu_erf", "silu"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Activation>(i);
  throw std::invalid_argument("activation: unknown name " + text);
}

/// Calls f(position in the logical order, offset in elements) for each element of a view.
template <class F>
void for_elements(const ConstTensorView& view, const F& f) {
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    f(static_cast<std::size_t>(i), offset);
  }
}
inline std::vector<double> gathered(const ConstTensorView& view) {
  std::vector<double> out(static_cast<std::size_t>(view.elements()));
  for_elements(view, [&](std::size_t i, std::int64_t offset) { out[i] = read_element(view.data, view.dtype, offset); });
  return out;
}
inline void scattered(const TensorView& view, const std::vector<double>& values) {
  for_elements(view, [&](std::size_t i, std::int64_t offset) { write_element(view.data, view.dtype, offset, values[i]); });
}

/// The CPU rows of a layer that accept a description.
template <class Plan, class Description, class Sizes>
std::vector<std::string> accepting_rows(std::string_view layer, const Description& description, const Sizes& sizes) {
  std::vector<std::string> out;
  for (const auto& row : kernels(layer, DeviceKind::cpu)) {
    try {
      const Plan plan(description, sizes, Device::cpu(), {.force = row});
      out.push_back(row);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return out;
}

/// The text of the Error that f throws; empty where it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace everglow::test
