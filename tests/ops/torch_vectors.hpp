// What PyTorch computes for small problems of each layer, read from tests/oracles/torch_*.txt (their scripts lie beside them).
#pragma once

#include "support/tensor.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::test {

struct TorchTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

struct TorchCase {
  std::string name;
  std::map<std::string, double> numbers;
  std::map<std::string, TorchTensor> tensors;

  double number(const std::string& key) const { return numbers.at(key); }
  bool has(const std::string& key) const { return tensors.contains(key); }
  const std::vector<double>& values(const std::string& key) const { return tensors.at(key).values; }
  std::int64_t size(const std::string& key, std::size_t dimension) const { return tensors.at(key).shape.at(dimension); }
  /// A tensor of the case in the memory of a test, rows of floats 3 elements apart.
  HostTensor host(const std::string& key, DType dtype) const;
  /// One of the shape of another, poisoned.
  HostTensor blank(const std::string& key, DType dtype) const;
};

/// The cases whose first word is the layer; at least one.
std::vector<TorchCase> torch_cases(std::string_view layer);

/// The relative error of one operation where a tensor of this type is compared with PyTorch's, which rounds to f64 itself.
double roundoff_beside_torch(DType dtype);

}  // namespace everglow::test
