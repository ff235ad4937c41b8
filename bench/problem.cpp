// Finds the benchmark of a case's layer and checks the keys of the case.
#include "bench/problem.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace everglow::bench {
namespace {

using Make = Problem (*)(const cases::Case&, const Settings&);

/// In the order of benchmarked_layers.
constexpr std::array<Make, 10> makers{linear_problem, recurrent_problem, attention_problem, softmax_problem, embedding_problem,
                                      loss_problem,   pointwise_problem, adam_problem,      copy_problem,    gnmt_problem};

}  // namespace

const std::vector<Layer>& benchmarked_layers() {
  static const std::vector<Layer> all{
      {"linear", {"batch", "inputs", "outputs"}, {"layout", "activation", "bias", "dtype", "training", "packed", "rows", "tuned"}},
      {"recurrent",
       {"steps", "batch", "inputs", "hidden"},
       {"cell", "layers", "bidirectional", "projection", "dropout", "lengths", "resets", "bias", "dtype", "training", "packed"}},
      {"attention",
       {"batch", "queries", "keys", "heads", "head_dim"},
       {"kv_heads", "value_dim", "causal", "window_left", "window_right", "dtype", "training"}},
      {"softmax", {"rows", "columns"}, {"log", "dtype"}},
      {"embedding", {"vocabulary", "width", "indices"}, {"dtype"}},
      {"loss", {"rows", "inputs", "classes"}, {"smoothing", "bias", "dtype"}},
      {"pointwise", {"rows", "columns"}, {"operation", "activation", "factor", "dropout", "dtype"}},
      {"adam", {"parameters", "tensors"}, {"clip"}},
      {"copy", {"bytes"}, {}},
      {"gnmt", {"batch", "hidden", "layers", "vocabulary"}, {"length", "text", "dropout", "dtype"}}};
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

Roof roof_of(DType dtype, const Settings& settings) {
  // The floor of a layer that only moves bytes, and the ridge of one that multiplies, hold both rates.
  constexpr std::int64_t elements = 1 << 20;
  const PlanOptions options{.threads = settings.threads, .advice = false};
  const double moved_us =
      SoftmaxPlan({.dtype = dtype}, {.rows = 1, .columns = elements}, settings.device, options).explain().floor_us;
  Roof out{.figures = settings.device.figures.source};
  if (!(moved_us > 0)) return out;
  out.bandwidth_gbs = 2.0 * static_cast<double>(elements) * static_cast<double>(size_of(dtype)) / moved_us / 1e3;
  const LinearPlan products({.inputs = 1, .outputs = 1, .dtype = dtype}, {.batch = 1}, settings.device, options);
  out.peak_gflops = products.explain().gemms.front().ridge * out.bandwidth_gbs;
  return out;
}

void append_peers(Problem& problem, std::vector<Row> peers) {
  for (Row& row : peers) {
    for (const Expected& expected : problem.rows.empty() ? std::vector<Expected>(row.passes.size()) : problem.rows.front().expected)
      row.expected.push_back({.floor_us = expected.floor_us});
    problem.rows.push_back(std::move(row));
  }
}

Activation activation_of(const cases::Case& c) {
  return named<Activation>(c, "activation", {"none", "relu", "gelu_tanh", "gelu_erf", "silu"});
}

ByteSets::ByteSets(std::size_t bytes, std::int64_t sets, Device device)
    : bytes_(static_cast<std::int64_t>(bytes)),
      stride_((bytes_ + 255) / 256 * 256),
      memory_(static_cast<std::size_t>(stride_ * sets), device) {
  fill_zero(memory_);
}

TensorView ByteSets::at(std::int64_t set) const {
  return {static_cast<std::byte*>(memory_.data()) + set * stride_, DType::u8, {bytes_}, memory_.device()};
}

}  // namespace everglow::bench
