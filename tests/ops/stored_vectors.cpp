// Reads the stored cases of other libraries.
#include "ops/stored_vectors.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace everglow::test {
namespace {

/// Numbers, "nan", "inf" and "-inf", which a stream does not read.
std::vector<double> read_values(std::istream& file, std::size_t count) {
  std::vector<double> out;
  std::string word;
  while (out.size() < count && file >> word) out.push_back(std::stod(word));
  if (out.size() != count) throw std::runtime_error("stored vectors end inside a tensor");
  return out;
}

std::vector<StoredCase> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<StoredCase> out;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, name;
    if (!(words >> kind)) continue;  // the end of a line of values
    if (kind == "case") {
      std::getline(words >> std::ws, name);
      out.push_back({name, {}, {}});
      continue;
    }
    if (out.empty() || !(words >> name)) throw std::runtime_error(path + ": " + line);
    if (kind == "number") {
      out.back().numbers[name] = read_values(words, 1).front();
      continue;
    }
    if (kind != "tensor") throw std::runtime_error(path + ": " + line);
    StoredTensor tensor;
    std::size_t count = 1;
    for (std::int64_t size = 0; words >> size; count *= static_cast<std::size_t>(size)) tensor.shape.push_back(size);
    tensor.values = read_values(file, count);
    out.back().tensors[name] = tensor;
  }
  if (out.empty()) throw std::runtime_error(path + " has no case");
  return out;
}

}  // namespace

HostTensor StoredCase::blank(const std::string& key, DType dtype) const {
  const auto& shape = tensors.at(key).shape;
  return {dtype, shape, dtype <= DType::f64 && shape.size() > 1 ? shape.back() + 3 : 0};
}

HostTensor StoredCase::host(const std::string& key, DType dtype) const {
  HostTensor out = blank(key, dtype);
  out.set(values(key));
  return out;
}

std::vector<StoredCase> torch_cases(const std::string& layer) { return read_file(EVERGLOW_ORACLES "/torch/" + layer + ".txt"); }
std::vector<StoredCase> jax_cases(const std::string& layer) { return read_file(EVERGLOW_ORACLES "/jax/" + layer + ".txt"); }

double roundoff_beside_stored(DType dtype) { return unit_roundoff(dtype) + unit_roundoff(DType::f64); }

}  // namespace everglow::test
