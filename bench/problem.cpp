// Finds the benchmark of a case's layer and checks the keys of the case.
#include "bench/problem.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace everglow::bench {
namespace {

struct Layer {
  std::string_view name;
  Problem (*make)(const cases::Case&, const Settings&);
  std::vector<std::string_view> keys;
};

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all{
      {"linear", linear_problem, {"batch", "inputs", "outputs", "layout", "activation", "bias", "dtype", "packed"}},
      {"recurrent",
       recurrent_problem,
       {"cell", "steps", "batch", "inputs", "hidden", "bidirectional", "bias", "dtype", "training", "packed"}},
      {"attention",
       attention_problem,
       {"batch", "queries", "keys", "heads", "kv_heads", "head_dim", "value_dim", "causal", "dtype"}},
      {"softmax", softmax_problem, {"rows", "columns", "log", "dtype"}},
      {"embedding", embedding_problem, {"vocabulary", "width", "indices", "dtype"}},
      {"loss", loss_problem, {"rows", "inputs", "classes", "smoothing", "bias", "dtype"}},
      {"pointwise", pointwise_problem, {"operation", "rows", "columns", "activation", "factor", "dropout", "dtype"}},
      {"adam", adam_problem, {"parameters", "tensors", "clip"}}};
  return all;
}

}  // namespace

Problem make_problem(const cases::Case& c, const Settings& settings) {
  for (const Layer& layer : layers()) {
    if (layer.name != c.layer) continue;
    for (const auto& [key, value] : c.fields) {
      if (std::find(layer.keys.begin(), layer.keys.end(), key) != layer.keys.end()) continue;
      std::string known;
      for (const std::string_view name : layer.keys) known += (known.empty() ? "" : ", ") + std::string(name);
      throw std::invalid_argument("case: the benchmark of " + c.layer + " knows " + known + ", got \"" + key + "\"");
    }
    return layer.make(c, settings);
  }
  throw std::invalid_argument("case: no benchmark of a layer \"" + c.layer +
                              "\"; for example linear batch=64 inputs=256 outputs=256");
}

Activation activation_of(const cases::Case& c) {
  return named<Activation>(c, "activation", {"none", "relu", "gelu_tanh", "gelu_erf", "silu"});
}

ByteSets::ByteSets(std::size_t bytes, std::int64_t sets)
    : bytes_(static_cast<std::int64_t>(bytes)),
      stride_((bytes_ + 63) / 64 * 64),
      memory_(static_cast<std::size_t>(stride_ * sets), Device::cpu()) {
  if (memory_.bytes() > 0) std::memset(memory_.data(), 0, memory_.bytes());
}

TensorView ByteSets::at(std::int64_t set) const {
  return {static_cast<std::byte*>(memory_.data()) + set * stride_, DType::u8, {bytes_}};
}

}  // namespace everglow::bench
