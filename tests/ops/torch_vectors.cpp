// Reads the stored cases of PyTorch.
#include "ops/torch_vectors.hpp"

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
  if (out.size() != count) throw std::runtime_error("a stored tensor of PyTorch ends early");
  return out;
}

void read_file(const std::string& path, std::vector<TorchCase>& out) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
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
    TorchTensor tensor;
    std::size_t count = 1;
    for (std::int64_t size = 0; words >> size; count *= static_cast<std::size_t>(size)) tensor.shape.push_back(size);
    tensor.values = read_values(file, count);
    out.back().tensors[name] = tensor;
  }
}

std::vector<TorchCase> read_all() {
  std::vector<TorchCase> out;
  for (const char* name : {"/torch_vectors.txt", "/torch_recurrent.txt"}) read_file(std::string(EVERGLOW_ORACLES) + name, out);
  return out;
}

}  // namespace

HostTensor TorchCase::blank(const std::string& key, DType dtype) const {
  const auto& shape = tensors.at(key).shape;
  return {dtype, shape, dtype <= DType::f64 && shape.size() > 1 ? shape.back() + 3 : 0};
}

HostTensor TorchCase::host(const std::string& key, DType dtype) const {
  HostTensor out = blank(key, dtype);
  out.set(values(key));
  return out;
}

std::vector<TorchCase> torch_cases(std::string_view layer) {
  static const std::vector<TorchCase> all = read_all();
  std::vector<TorchCase> out;
  for (const TorchCase& c : all)
    if (c.name.starts_with(std::string(layer) + ' ')) out.push_back(c);
  if (out.empty()) throw std::runtime_error("there is no stored case of " + std::string(layer));
  return out;
}

double roundoff_beside_torch(DType dtype) { return unit_roundoff(dtype) + unit_roundoff(DType::f64); }

}  // namespace everglow::test
