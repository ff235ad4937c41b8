// The plan of the translation model: the plans of its layers, without tensors, in sum.
#include <everglow/gnmt/plan.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace everglow::gnmt {
namespace {

using std::int64_t;

double real(int64_t value) { return static_cast<double>(value); }
/// As large as fits.
int64_t whole(double value) { return static_cast<int64_t>(std::min(value, 9.2e18)); }

/// Collects the parts of a step.
class Collector {
 public:
  Collector(const ModelDescription& model, const ModelSizes& sizes, const DeviceDescription& device, PlanOptions options)
      : model_(model), sizes_(sizes), device_(device), options_(std::move(options)) {
    options_.advice = false;
    element_ = static_cast<double>(size_of(model.dtype));
    rows_ = sizes.batch * sizes.length;
  }

  void encoder() {
    const int64_t H = model_.hidden;
    embedding("source embedding", model_.vocabulary * H);
    for (int64_t l = 0; l < model_.layers; ++l) lstm("encoder", l, l == 1 ? 2 * H : H, l == 0);
    if (model_.layers == 1) linear("encoder projection", 2 * H, H, true);
    linear("keys and values", H, 2 * H, false);
  }

  void decoder() {
    const int64_t H = model_.hidden;
    embedding("target embedding", 0);  // shared with the source's
    for (int64_t l = 0; l < model_.layers; ++l) {
      lstm("decoder", l, l == 0 ? H : 2 * H, false);
      if (l > 0) continue;
      linear("queries", H, H, false);
      attention();
    }
    classifier();
  }

  void optimizer() {
    int64_t parameters = 0;
    for (const ModelItem& item : items) parameters += item.parameters;
    const AdamPlan plan({.clip = 5}, {.parameters = parameters, .tensors = static_cast<int64_t>(items.size())}, device_, options_);
    add("optimizer", 0, plan, 0);
  }

  std::vector<ModelItem> items;
  double kept = 0, scratch = 0;  // bytes of activations, and the largest scratch

 private:
  template <class Plan>
  void add(std::string name, int64_t parameters, const Plan& plan, double activations) {
    items.push_back({std::move(name), parameters, plan.explain()});
    kept += activations;
    scratch = std::max(scratch, static_cast<double>(plan.workspace_bytes()));
  }

  void embedding(const char* name, int64_t parameters) {
    const EmbeddingPlan plan({.vocabulary = model_.vocabulary, .width = model_.hidden, .dtype = model_.dtype}, {rows_}, device_,
                             options_);
    add(name, parameters, plan, real(rows_) * real(model_.hidden) * element_);
    // The gradient's rows are added into the table, which the optimiser reads whole.
    Explanation& e = items.back().explanation;
    e.time_us *= 2, e.floor_us *= 2;
  }

  void lstm(const char* side, int64_t layer, int64_t inputs, bool both_ways) {
    const int64_t H = model_.hidden, directions = both_ways ? 2 : 1;
    const RecurrentPlan plan({.cell = Cell::lstm,
                              .inputs = inputs,
                              .hidden = H,
                              .bidirectional = both_ways,
                              .dtype = model_.dtype,
                              .training = true,
                              .lengths = both_ways},
                             {sizes_.length, sizes_.batch}, device_, options_);
    // Four gates and the cell of every step where the row does not say, and the output; dropout keeps its input too.
    const double output = real(directions) * real(rows_) * real(H) * element_;
    const double reserve = plan.reserve_bytes() > 0 ? static_cast<double>(plan.reserve_bytes()) : 5 * output;
    const double input = layer > 0 && model_.dropout > 0 ? real(rows_) * real(inputs) * element_ : 0;
    add(std::string(side) + " " + std::to_string(layer), directions * (4 * H * (inputs + H) + 8 * H), plan,
        reserve + input + output);
  }

  void linear(const char* name, int64_t inputs, int64_t outputs, bool bias) {
    const LinearPlan plan({.inputs = inputs, .outputs = outputs, .dtype = model_.dtype, .training = true}, {rows_}, device_,
                          options_);
    add(name, inputs * outputs + (bias ? outputs : 0), plan, real(rows_) * real(outputs) * element_);
  }

  void attention() {
    const int64_t heads = model_.heads();
    const AttentionPlan plan({.heads = heads,
                              .head_dim = model_.hidden / std::max<int64_t>(heads, 1),
                              .key_lengths = true,
                              .dtype = model_.dtype,
                              .training = true},
                             {.batch = sizes_.batch, .queries = sizes_.length, .keys = sizes_.length}, device_, options_);
    add("attention", 0, plan, real(rows_) * real(model_.hidden) * element_ + 4 * real(rows_) * real(heads));
  }

  void classifier() {
    const int64_t inputs = model_.layers == 1 ? 2 * model_.hidden : model_.hidden, V = model_.vocabulary;
    const LossPlan plan(
        {.inputs = inputs, .classes = V, .dtype = model_.dtype, .smoothing = model_.label_smoothing, .training = true}, {rows_},
        device_, options_);
    add("classifier", inputs * V + V, plan, 0);
    // A library keeps all logits; our row never has them all.
    if (items.back().explanation.kernel.empty()) scratch = std::max(scratch, real(rows_) * real(V) * element_);
  }

  const ModelDescription& model_;
  const ModelSizes& sizes_;
  const DeviceDescription& device_;
  PlanOptions options_;
  double element_ = 4;
  int64_t rows_ = 0;
};

Collector collected(const ModelDescription& model, const ModelSizes& sizes, const DeviceDescription& device,
                    const PlanOptions& options) {
  Collector out(model, sizes, device, options);
  out.encoder();
  out.decoder();
  out.optimizer();
  return out;
}

double time_of(const std::vector<ModelItem>& items) {
  return std::accumulate(items.begin(), items.end(), 0.0,
                         [](double sum, const ModelItem& item) { return sum + item.explanation.time_us; });
}

/// The smallest candidate that reaches 95 % of the best gain, where that is at least 3 %.
void advise(ExplanationAdvice wanted, const std::vector<int64_t>& candidates, const std::function<double(int64_t)>& time_at,
            std::vector<ExplanationAdvice>& out) {
  constexpr double share = 0.95, least = 1.03;
  std::vector<double> times;
  for (const int64_t to : candidates) times.push_back(time_at(to));
  if (times.empty() || wanted.time_us_before <= 0) return;
  const double best = wanted.time_us_before / *std::min_element(times.begin(), times.end());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double gain = wanted.time_us_before / times[i];
    if (gain < least || gain < share * best) continue;
    wanted.to = candidates[i], wanted.time_us_after = times[i], wanted.gain = gain;
    out.push_back(std::move(wanted));
    return;
  }
}

std::vector<int64_t> multiples(int64_t from) {
  std::vector<int64_t> out;
  for (const int64_t unit : {2, 4, 8, 16, 32, 64, 128}) {
    const int64_t to = (from + unit - 1) / unit * unit;
    if (to > from && (out.empty() || out.back() != to)) out.push_back(to);
  }
  return out;
}

/// Half as many more each time: a model's batch is not chosen to the row.
std::vector<int64_t> batches(int64_t from) {
  constexpr int64_t most = 1024;
  std::vector<int64_t> out;
  for (int64_t to = from + (from + 1) / 2; to <= std::max(most, 2 * from); to += (to + 1) / 2) out.push_back((to + 7) / 8 * 8);
  return out;
}

std::vector<ExplanationAdvice> advice_of(const ModelDescription& model, const ModelSizes& sizes, const DeviceDescription& device,
                                         const PlanOptions& options, double before) {
  std::vector<ExplanationAdvice> out;
  const auto at = [&](const ModelDescription& other, const ModelSizes& other_sizes) {
    return time_of(collected(other, other_sizes, device, options).items);
  };
  advise(
      {.kind = "size",
       .dimension = "vocabulary",
       .from = model.vocabulary,
       .time_us_before = before,
       .reason = "rows of the classifier's logits and of their gradient become multiples of 16 bytes"},
      multiples(model.vocabulary),
      [&](int64_t to) {
        ModelDescription other = model;
        other.vocabulary = to;
        return at(other, sizes);
      },
      out);
  std::vector<int64_t> hidden;
  for (const int64_t to : multiples(model.hidden))
    if (to % std::max<int64_t>(ModelDescription{.hidden = to}.heads(), 1) == 0) hidden.push_back(to);
  advise(
      {.kind = "size",
       .dimension = "hidden",
       .from = model.hidden,
       .time_us_before = before,
       .reason = "rows of every layer are better aligned"},
      hidden,
      [&](int64_t to) {
        ModelDescription other = model;
        other.hidden = to;
        return at(other, sizes);
      },
      out);
  if (sizes.batch > 0)
    advise(
        {.kind = "size",
         .dimension = "batch",
         .from = sizes.batch,
         .time_us_before = before,
         .reason = "per pair: recurrent steps and weights serve more rows"},
        batches(sizes.batch),
        [&](int64_t to) {
          return at(model, {to, sizes.length}) * static_cast<double>(sizes.batch) / static_cast<double>(to);
        },
        out);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return out;
}

void require(bool right, const char* what) {
  if (!right) throw Error(ErrorCode::invalid_argument, "gnmt.plan", what);
}

}  // namespace

ModelExplanation explain(const ModelDescription& model, const ModelSizes& sizes, const DeviceDescription& device,
                         const PlanOptions& options) {
  constexpr int64_t most = 1 << 24;
  require(model.hidden >= 1 && model.hidden <= most, "hidden: expected 1 ... 16777216");
  require(model.vocabulary >= 1 && model.vocabulary <= 64 * most, "vocabulary: expected 1 ... 1073741824");
  require(model.layers >= 1 && model.layers <= 1024, "layers: expected 1 ... 1024");
  require(sizes.batch >= 0 && sizes.length >= 0 && real(sizes.batch) * real(sizes.length) < 1e15,
          "batch and length: expected 0 or more, and fewer than 1e15 tokens");
  require(model.hidden % model.heads() == 0, "hidden: expected a multiple of its heads (hidden / 64, rounded down, from 128 on)");
  Collector parts = collected(model, sizes, device, options);
  ModelExplanation out;
  out.device = device.name;
  out.dtype = name(model.dtype);
  out.items = std::move(parts.items);
  for (const ModelItem& item : out.items) {
    out.parameters += item.parameters;
    out.floor_us += item.explanation.floor_us;
  }
  out.time_us = time_of(out.items);
  const auto element = static_cast<int64_t>(size_of(model.dtype));
  const int64_t master = element < 4 ? 4 : 0, moment = std::max<int64_t>(element, 4);
  out.memory.weights = out.parameters * (element + master);
  out.memory.gradients = out.parameters * moment;
  out.memory.optimizer = 2 * out.parameters * moment;
  out.memory.activations = whole(parts.kept);
  out.memory.peak = whole(real(out.memory.weights + out.memory.gradients + out.memory.optimizer) + parts.kept + parts.scratch);
  const double tokens = 2 * static_cast<double>(sizes.batch) * static_cast<double>(sizes.length);
  out.tokens_per_second = out.time_us > 0 ? tokens / out.time_us * 1e6 : 0;
  std::vector<std::size_t> order(out.items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto lost = [&](std::size_t i) { return out.items[i].explanation.time_us - out.items[i].explanation.floor_us; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lost(a) > lost(b); });
  order.resize(std::min<std::size_t>(order.size(), 3));
  out.worst = order;
  if (options.advice) out.advice = advice_of(model, sizes, device, options, out.time_us);
  return out;
}

}  // namespace everglow::gnmt
