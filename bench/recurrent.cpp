// The recurrent layer as a benchmark. Forward fills the reserve unless the case says training=0, which leaves backward out.
#include "bench/peers.hpp"

#include <array>
#include <cmath>

namespace everglow::bench {
namespace {

template <class Views>
std::vector<Views> views(const RecurrentTensors& t, const std::vector<RecurrentNumbers>& all, std::int64_t i) {
  std::vector<Views> out;
  for (const RecurrentNumbers& w : all)
    out.push_back({.w_ih = t.at(w.w_ih, i), .w_hh = t.at(w.w_hh, i), .b_ih = t.at(w.b_ih, i), .b_hh = t.at(w.b_hh, i), .w_hr = {}});
  return out;
}

int gates_of(Cell cell) {
  if (cell == Cell::lstm) return 4;
  return cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1;
}

std::shared_ptr<const RecurrentTensors> tensors(const RecurrentDescription& d, const RecurrentSizes& sizes, bool bias,
                                                const Settings& settings) {
  const auto t = std::make_shared<RecurrentTensors>();
  TensorSets& s = t->sets;
  t->training = d.training;
  const std::int64_t gates = gates_of(d.cell) * d.hidden;
  const std::vector<std::int64_t> in{sizes.steps, sizes.batch, d.inputs};
  const std::vector<std::int64_t> out{sizes.steps, sizes.batch, d.directions() * d.hidden};
  const std::vector<std::int64_t> state{d.directions(), sizes.batch, d.hidden};
  t->x = s.add(d.dtype, in, -1, 1), t->y = s.add(d.dtype, out);
  t->h0 = s.add(d.dtype, state, -1, 1), t->hn = s.add(d.dtype, state);
  t->c0 = d.cell == Cell::lstm ? s.add(d.dtype, state, -1, 1) : -1, t->cn = d.cell == Cell::lstm ? s.add(d.dtype, state) : -1;
  if (d.training) t->dy = s.add(d.dtype, out, -1, 1), t->dx = s.add(d.dtype, in);
  // torch's own range, so that gates are neither dead nor saturated
  const double range = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(d.hidden, 1)));
  for (std::int64_t i = 0; i < d.directions(); ++i) {
    RecurrentNumbers w{s.add(d.dtype, {gates, d.inputs}, -range, range), s.add(d.dtype, {gates, d.hidden}, -range, range)};
    if (bias) w.b_ih = s.add(d.dtype, {gates}, -range, range), w.b_hh = s.add(d.dtype, {gates}, -range, range);
    t->weights.push_back(w);
    if (!d.training) continue;
    RecurrentNumbers dw{s.add(d.dtype, {gates, d.inputs}), s.add(d.dtype, {gates, d.hidden})};
    if (bias) dw.b_ih = s.add(d.dtype, {gates}), dw.b_hh = s.add(d.dtype, {gates});
    t->dweights.push_back(dw);
  }
  s.allocate(settings.rotate_bytes, settings.seed);
  return t;
}

std::vector<Pass> passes(const RecurrentPlan& plan, const std::shared_ptr<const RecurrentTensors>& t, std::int64_t sets,
                         bool packed) {
  const Buffer workspace(plan.workspace_bytes(), Device::cpu());
  const ByteSets reserve(plan.reserve_bytes(), sets), memory(packed ? plan.packed_bytes() : 0, sets);
  std::shared_ptr<const std::vector<PackedWeights>> ready;
  if (packed && plan.packed_bytes() > 0)
    ready = packed_sets(memory, sets,
                        [&](std::int64_t i, PackedWeights& out) { plan.pack(views<RecurrentWeights>(*t, t->weights, i), out); });
  const auto of = [ready, memory](std::int64_t i) { return ready ? &(*ready)[static_cast<std::size_t>(i)] : nullptr; };
  const auto forward = [=](std::int64_t i) {
    const auto weights = views<RecurrentWeights>(*t, t->weights, i);
    RecurrentForward f{.x = t->at(t->x, i), .h0 = t->at(t->h0, i), .c0 = t->at(t->c0, i), .weights = weights};
    f.y = t->at(t->y, i), f.hn = t->at(t->hn, i), f.cn = t->at(t->cn, i), f.packed = of(i);
    if (t->training) f.reserve = reserve.at(i);
    plan.forward(f, workspace);
  };
  if (!t->training) return {{{}, forward}};
  const auto backward = [=](std::int64_t i) {
    const auto weights = views<RecurrentWeights>(*t, t->weights, i);
    const auto gradients = views<RecurrentWeightGradients>(*t, t->dweights, i);
    RecurrentBackward b{.x = t->at(t->x, i), .h0 = t->at(t->h0, i), .c0 = t->at(t->c0, i), .weights = weights};
    b.y = t->at(t->y, i), b.reserve = reserve.at(i), b.dy = t->at(t->dy, i), b.dx = t->at(t->dx, i);
    b.dweights = gradients, b.packed = of(i);
    plan.backward(b, workspace);
  };
  return {{{}, forward}, {forward, backward}};
}

}  // namespace

Problem recurrent_problem(const cases::Case& c, const Settings& settings) {
  const RecurrentSizes sizes{.steps = c.integer("steps", 1), .batch = c.integer("batch", 1)};
  RecurrentDescription d{.cell = named<Cell>(c, "cell", {"lstm", "gru", "gru_reset_before", "tanh", "relu"}),
                         .inputs = c.integer("inputs", 1),
                         .hidden = c.integer("hidden", 1)};
  d.bidirectional = c.flag("bidirectional"), d.dtype = dtype_of(c), d.training = c.flag("training", true);
  const auto t = tensors(d, sizes, c.flag("bias", true), settings);
  const TensorSets& s = t->sets;
  double weights = 0;
  for (const RecurrentNumbers& w : t->weights) weights += s.bytes({w.w_ih, w.w_hh});
  const double product =
      2.0 * static_cast<double>(d.directions() * sizes.steps * sizes.batch * gates_of(d.cell) * d.hidden * (d.inputs + d.hidden));
  const auto steps = static_cast<double>(sizes.steps);
  std::vector<Direction> directions{{"forward", product, s.bytes({t->x, t->y}) + weights, steps}};
  if (d.training) directions.push_back({"backward", 2 * product, s.bytes({t->x, t->y, t->dy, t->dx}) + 2 * weights, steps});
  Problem out{std::string(name(d.dtype)), directions,
              accepting_rows<RecurrentPlan>(settings, s, d, sizes, [&](const RecurrentPlan& plan, std::int64_t sets) {
                return passes(plan, t, sets, c.flag("packed"));
              })};
  if (settings.peers)
    for (Row& row : onednn_lstm(d, sizes, t, settings.threads)) out.rows.push_back(std::move(row));
  return out;
}

}  // namespace everglow::bench
