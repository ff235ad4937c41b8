// What the tests of the small layers share: names of operations, the rows that accept a description, and the text of an error.
#pragma once

#include "cases/proof/names.hpp"
#include "support/tensor.hpp"

#include <string>
#include <vector>

namespace everglow::test {

using proof::parse_activation;
using proof::parse_pointwise;

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
