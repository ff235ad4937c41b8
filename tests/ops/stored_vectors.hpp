// What other libraries compute for small problems of each layer, read from tests/oracles/torch/*.txt and tests/oracles/jax/*.txt;
// the scripts that wrote them lie beside the folders, the form is told in tests/oracles/vectors.py.
#pragma once

#include "support/tensor.hpp"

#include <map>
#include <string>
#include <vector>

namespace everglow::test {

struct StoredTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

struct StoredCase {
  std::string name;
  std::map<std::string, double> numbers;
  std::map<std::string, StoredTensor> tensors;

  double number(const std::string& key) const { return numbers.at(key); }
  /// A whole number; `otherwise` where the case has none.
  std::int64_t whole(const std::string& key, std::int64_t otherwise) const {
    return numbers.contains(key) ? static_cast<std::int64_t>(number(key)) : otherwise;
  }
  bool has(const std::string& key) const { return tensors.contains(key); }
  const std::vector<double>& values(const std::string& key) const { return tensors.at(key).values; }
  std::int64_t size(const std::string& key, std::size_t dimension) const { return tensors.at(key).shape.at(dimension); }
  /// A tensor of the case in the memory of a test, rows of floats 3 elements apart.
  HostTensor host(const std::string& key, DType dtype) const;
  /// One of the shape of another, poisoned.
  HostTensor blank(const std::string& key, DType dtype) const;
};

/// The cases of a layer; at least one.
std::vector<StoredCase> torch_cases(const std::string& layer);
std::vector<StoredCase> jax_cases(const std::string& layer);

/// The relative error of one operation where a tensor of this type is compared with one of another library, which rounds to f64.
double roundoff_beside_stored(DType dtype);

}  // namespace everglow::test
