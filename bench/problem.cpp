// Finds the benchmark of a case's layer and checks the keys of the case.
#include "bench/problem.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace everglow::bench {
namespace {

using Make = Problem (*)(const cases::Case&, const Settings&);

/// In the order of benchmarked_layers.
constexpr std::array<Make, 9> makers{linear_problem, recurrent_problem, attention_problem, softmax_problem, embedding_problem,
                                     loss_problem,   pointwise_problem, adam_problem,      gnmt_problem};

}  // namespace

const std::vector<Layer>& benchmarked_layers() {
  static const std::vector<Layer> all{
      {"linear", {"batch", "inputs", "outputs"}, {"layout", "activation", "bias", "dtype", "packed"}},
      {"recurrent", {"steps", "batch", "inputs", "hidden"}, {"cell", "bidirectional", "bias", "dtype", "training", "packed"}},
      {"attention", {"batch", "queries", "keys", "heads", "head_dim"}, {"kv_heads", "value_dim", "causal", "dtype"}},
      {"softmax", {"rows", "columns"}, {"log", "dtype"}},
      {"embedding", {"vocabulary", "width", "indices"}, {"dtype"}},
      {"loss", {"rows", "inputs", "classes"}, {"smoothing", "bias", "dtype"}},
      {"pointwise", {"rows", "columns"}, {"operation", "activation", "factor", "dropout", "dtype"}},
      {"adam", {"parameters", "tensors"}, {"clip"}},
      {"gnmt", {"batch", "length", "hidden", "layers", "vocabulary"}, {"dropout", "dtype"}}};
  return all;
}

Problem make_problem(const cases::Case& c, const Settings& settings) {
  for (std::size_t i = 0; i < makers.size(); ++i) {
    const Layer& layer = benchmarked_layers()[i];
    if (layer.name != c.layer) continue;
    std::vector<std::string_view> known = layer.sizes;
    known.insert(known.end(), layer.options.begin(), layer.options.end());
    for (const auto& [key, value] : c.fields) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      std::string names;
      for (const std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
      throw std::invalid_argument("case: the benchmark of " + c.layer + " knows " + names + ", got \"" + key + "\"");
    }
    return makers[i](c, settings);
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
