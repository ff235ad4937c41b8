// The recurrent layer as a benchmark. Forward fills the reserve unless the case says training=0, which leaves backward out.
#include "bench/cuda/peers.hpp"
#include "bench/rows.hpp"

#include <cmath>

namespace everglow::bench {
namespace {

enum class Lengths : std::uint8_t { none, random, full, zero };

template <class Views>
std::vector<Views> views(const RecurrentTensors& t, const std::vector<RecurrentNumbers>& all, std::int64_t i) {
  std::vector<Views> out;
  for (const RecurrentNumbers& w : all)
    out.push_back({.w_ih = t.at(w.w_ih, i),
                   .w_hh = t.at(w.w_hh, i),
                   .b_ih = t.at(w.b_ih, i),
                   .b_hh = t.at(w.b_hh, i),
                   .w_hr = t.at(w.w_hr, i)});
  return out;
}

std::int64_t outputs_of(const RecurrentDescription& d) { return d.projection > 0 ? d.projection : d.hidden; }
std::int64_t inputs_of(const RecurrentDescription& d, std::int64_t layer) {
  return layer == 0 ? d.inputs : d.directions() * outputs_of(d);
}

RecurrentDescription description_of(const cases::Case& c) {
  RecurrentDescription d{.cell = named<Cell>(c, "cell", {"lstm", "gru", "gru_reset_before", "tanh", "relu"}),
                         .inputs = c.integer("inputs", 1),
                         .hidden = c.integer("hidden", 1)};
  d.layers = c.integer("layers", 1), d.bidirectional = c.flag("bidirectional"), d.projection = c.integer("projection", 0);
  d.dropout = static_cast<float>(c.number("dropout", 0)), d.dtype = dtype_of(c), d.training = c.flag("training", true);
  d.lengths = c.has("lengths"), d.resets = c.flag("resets");
  return d;
}

RecurrentNumbers add_weights(TensorSets& s, const RecurrentDescription& d, std::int64_t layer, bool bias, double range) {
  const std::int64_t gates = gates_of(d.cell) * d.hidden;
  RecurrentNumbers w{s.add(d.dtype, {gates, inputs_of(d, layer)}, -range, range),
                     s.add(d.dtype, {gates, outputs_of(d)}, -range, range)};
  if (bias) w.b_ih = s.add(d.dtype, {gates}, -range, range), w.b_hh = s.add(d.dtype, {gates}, -range, range);
  if (d.projection > 0) w.w_hr = s.add(d.dtype, {d.projection, d.hidden}, -range, range);
  return w;
}

/// Lengths of rows: "random" spreads them over 1 ... steps, in an order that is none, and the same for a peer.
std::int64_t length_of(Lengths lengths, std::int64_t row, std::int64_t steps) {
  constexpr std::int64_t stride = 7919;  // a prime
  if (lengths == Lengths::random) return steps > 0 ? 1 + row * stride % steps : 0;
  return lengths == Lengths::full ? steps : 0;
}

Lengths lengths_of(const cases::Case& c) {
  return c.has("lengths") ? named<Lengths>(c, "lengths", {"none", "random", "full", "zero"}) : Lengths::none;
}

void add_edges(RecurrentTensors& t, const RecurrentDescription& d, const RecurrentSizes& sizes, Lengths lengths) {
  constexpr std::int64_t one_in = 33;  // 3 % of the steps begin anew, as in reinforcement learning
  if (d.lengths)
    t.lengths = t.sets.add_values({sizes.batch}, [=](std::int64_t row) { return length_of(lengths, row, sizes.steps); });
  if (d.resets) t.resets = t.sets.add_flags({sizes.steps, sizes.batch}, one_in);
}

std::shared_ptr<const RecurrentTensors> tensors(const RecurrentDescription& d, const RecurrentSizes& sizes, const cases::Case& c,
                                                const Settings& settings) {
  const auto t = std::make_shared<RecurrentTensors>();
  TensorSets& s = t->sets;
  t->training = d.training;
  const std::vector<std::int64_t> in{sizes.steps, sizes.batch, d.inputs};
  const std::vector<std::int64_t> out{sizes.steps, sizes.batch, d.directions() * outputs_of(d)};
  const std::vector<std::int64_t> h{d.layers * d.directions(), sizes.batch, outputs_of(d)}, cell{h[0], h[1], d.hidden};
  t->x = s.add(d.dtype, in, -1, 1), t->y = s.add(d.dtype, out);
  t->h0 = s.add(d.dtype, h, -1, 1), t->hn = s.add(d.dtype, h);
  t->c0 = d.cell == Cell::lstm ? s.add(d.dtype, cell, -1, 1) : -1, t->cn = d.cell == Cell::lstm ? s.add(d.dtype, cell) : -1;
  if (d.training) t->dy = s.add(d.dtype, out, -1, 1), t->dx = s.add(d.dtype, in);
  // torch's own range, so that gates are neither dead nor saturated
  const double range = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(d.hidden, 1)));
  const bool bias = c.flag("bias", true);
  for (std::int64_t i = 0; i < d.layers * d.directions(); ++i) {
    const std::int64_t layer = i / d.directions();
    t->weights.push_back(add_weights(s, d, layer, bias, range));
    if (d.training) t->dweights.push_back(add_weights(s, d, layer, bias, 0));
  }
  add_edges(*t, d, sizes, lengths_of(c));
  s.allocate(places(settings));
  return t;
}

std::vector<Pass> passes(const RecurrentPlan& plan, const std::shared_ptr<const RecurrentTensors>& t, const Settings& settings,
                         std::int64_t sets, bool packed) {
  const Buffer workspace(plan.workspace_bytes(), settings.where());
  const Stream stream = settings.stream();
  const ByteSets reserve(plan.reserve_bytes(), sets, settings.where()),
      memory(packed ? plan.packed_bytes() : 0, sets, settings.where());
  std::shared_ptr<const std::vector<PackedWeights>> ready;
  if (packed && plan.packed_bytes() > 0)
    ready = packed_sets(memory, sets, [&](std::int64_t i, PackedWeights& out) {
      plan.pack(views<RecurrentWeights>(*t, t->weights, i), out, stream);
    });
  const auto of = [ready, memory](std::int64_t i) { return ready ? &(*ready)[static_cast<std::size_t>(i)] : nullptr; };
  const std::uint64_t seed = plan.dropout_counters() > 0 ? 1 : 0;
  const auto forward = [=](std::int64_t i) {
    const auto weights = views<RecurrentWeights>(*t, t->weights, i);
    RecurrentForward f{.x = t->at(t->x, i), .h0 = t->at(t->h0, i), .c0 = t->at(t->c0, i), .weights = weights};
    f.y = t->at(t->y, i), f.hn = t->at(t->hn, i), f.cn = t->at(t->cn, i), f.packed = of(i);
    f.lengths = t->at(t->lengths, i), f.resets = t->at(t->resets, i), f.dropout_seed = seed;
    if (t->training) f.reserve = reserve.at(i);
    plan.forward(f, workspace, stream);
  };
  if (!t->training) return {{{}, forward}};
  const auto backward = [=](std::int64_t i) {
    const auto weights = views<RecurrentWeights>(*t, t->weights, i);
    const auto gradients = views<RecurrentWeightGradients>(*t, t->dweights, i);
    RecurrentBackward b{.x = t->at(t->x, i), .h0 = t->at(t->h0, i), .c0 = t->at(t->c0, i), .weights = weights};
    b.y = t->at(t->y, i), b.reserve = reserve.at(i), b.dy = t->at(t->dy, i), b.dx = t->at(t->dx, i);
    b.lengths = t->at(t->lengths, i), b.resets = t->at(t->resets, i), b.dropout_seed = seed;
    b.dweights = gradients, b.packed = of(i);
    plan.backward(b, workspace, stream);
  };
  return {{{}, forward}, {forward, backward}};
}

/// Multiply-adds of one step of one row, all layers and directions.
double multiply_adds(const RecurrentDescription& d) {
  double sum = 0;
  for (std::int64_t layer = 0; layer < d.layers; ++layer) {
    const std::int64_t gates = gates_of(d.cell) * d.hidden * (inputs_of(d, layer) + outputs_of(d));
    sum += static_cast<double>(d.directions() * (gates + d.projection * d.hidden));
  }
  return sum;
}

/// Steps that all rows have together.
double valid_steps(Lengths lengths, const RecurrentSizes& sizes) {
  if (lengths == Lengths::none) return static_cast<double>(sizes.steps * sizes.batch);
  double sum = 0;
  for (std::int64_t row = 0; row < sizes.batch; ++row) sum += static_cast<double>(length_of(lengths, row, sizes.steps));
  return sum;
}

}  // namespace

Problem recurrent_problem(const cases::Case& c, const Settings& settings) {
  const RecurrentSizes sizes{.steps = c.integer("steps", 1), .batch = c.integer("batch", 1)};
  const RecurrentDescription d = description_of(c);
  // Sizes that no plan takes must not reach the memory.
  const RecurrentPlan checked(d, sizes, settings.device, {.threads = settings.threads, .advice = false});
  const auto t = tensors(d, sizes, c, settings);
  const TensorSets& s = t->sets;
  double weights = 0;
  for (const RecurrentNumbers& w : t->weights) weights += s.bytes({w.w_ih, w.w_hh}) + (w.w_hr < 0 ? 0 : s.bytes({w.w_hr}));
  const double all = static_cast<double>(sizes.steps * sizes.batch), valid = valid_steps(lengths_of(c), sizes);
  const double share = all > 0 ? valid / all : 1, product = 2 * valid * multiply_adds(d);
  const auto steps = static_cast<double>(sizes.steps);
  Problem out{std::string(name(d.dtype)), {}, {}};
  out.directions.push_back({"forward", product, share * s.bytes({t->x, t->y}) + weights, Part::forward, share, steps});
  if (d.training)
    out.directions.push_back(
        {"backward", 2 * product, share * s.bytes({t->x, t->y, t->dy, t->dx}) + 2 * weights, Part::rest, share, steps});
  append_rows<RecurrentPlan>(out, settings, s, d, sizes, [&](const RecurrentPlan& plan, std::int64_t sets) {
    return passes(plan, t, settings, sets, c.flag("packed"));
  });
  if (settings.peers && settings.card) append_peers(out, cudnn_recurrent(d, sizes, t, settings));
  if (settings.peers && !settings.card) append_peers(out, onednn_lstm(d, sizes, t, settings.threads));
  return out;
}

}  // namespace everglow::bench
