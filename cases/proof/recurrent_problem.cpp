// Makes and runs the recurrent problems of proofs and tests.
#include "cases/proof/recurrent_problem.hpp"

#include "cases/proof/placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace everglow::proof {
namespace {

constexpr std::int64_t gap = 5;  // elements between rows where a problem is not dense

/// NaN in every row [t, b] of a [T, B, n] tensor that lies past the length of row b.
void poison_padding(const RecurrentProblem& p, HostTensor& tensor) {
  const std::int64_t width = tensor.view().size(2);
  for (std::int64_t b = 0; b < p.sizes.batch; ++b)
    for (std::int64_t t = p.length(b); t < p.sizes.steps; ++t)
      for (std::int64_t i = 0; i < width; ++i)
        tensor.put((t * p.sizes.batch + b) * width + i, std::numeric_limits<double>::quiet_NaN());
}

Cell parse_cell(const std::string& text) {
  static const std::map<std::string, Cell> cells{{"lstm", Cell::lstm},
                                                 {"gru", Cell::gru},
                                                 {"gru_reset_before", Cell::gru_reset_before},
                                                 {"tanh", Cell::tanh},
                                                 {"relu", Cell::relu}};
  return cells.at(text);
}

HostTensor random_lengths(const std::string& kind, const RecurrentSizes& sizes) {
  HostTensor lengths(DType::i32, {sizes.batch});
  lengths.integers(9, 0, static_cast<int>(sizes.steps));
  if (kind == "full") lengths.fill(static_cast<double>(sizes.steps));
  if (kind == "zero") lengths.fill(0);
  if (kind == "random" && sizes.batch > 1) lengths.put(0, 0), lengths.put(1, static_cast<double>(sizes.steps));
  return lengths;
}

}  // namespace

HostTensor RecurrentProblem::blank(DType dtype, std::vector<std::int64_t> shape) const {
  const std::int64_t stride = dense ? 0 : shape.back() + gap;
  return HostTensor(dtype, std::move(shape), stride);
}

std::int64_t RecurrentProblem::length(std::int64_t row) const {
  return description.lengths ? static_cast<std::int64_t>(lengths.at(row)) : sizes.steps;
}

std::int64_t RecurrentProblem::gates() const {
  const Cell cell = description.cell;
  return description.hidden * (cell == Cell::lstm ? 4 : cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1);
}

std::int64_t RecurrentProblem::inputs_of(std::size_t part) const {
  return static_cast<std::int64_t>(part) < description.directions() ? description.inputs : width();
}

std::vector<std::int64_t> RecurrentProblem::states_shape(std::int64_t columns) const {
  return {description.layers * description.directions(), sizes.batch, columns};
}

RecurrentProblem::RecurrentProblem(const cases::Case& c)
    : description{.cell = parse_cell(c.text("cell", "lstm")),
                  .inputs = c.integer("inputs", 1),
                  .hidden = c.integer("hidden", 1),
                  .layers = c.integer("layers", 1),
                  .bidirectional = c.flag("bidirectional"),
                  .projection = c.integer("projection", 0),
                  .dropout = static_cast<float>(c.number("dropout", 0)),
                  .dtype = parse_dtype(c.text("dtype", "f32")),
                  .training = c.flag("training", true),
                  .lengths = c.has("lengths"),
                  .resets = c.flag("resets")},
      sizes{c.integer("steps", 1), c.integer("batch", 1)},
      cell_dtype(parse_dtype(c.text("cell_dtype", name(description.dtype)))),
      gradient_dtype(parse_dtype(c.text("gradient_dtype", name(description.dtype)))),
      states(c.flag("states", true)),
      dense(c.flag("dense")) {
  const RecurrentDescription& d = description;
  x = blank(d.dtype, {sizes.steps, sizes.batch, d.inputs});
  dy = blank(d.dtype, {sizes.steps, sizes.batch, width()});
  x.uniform(1, -1, 1);
  dy.uniform(2, -1, 1);
  if (states) {
    h0 = blank(d.dtype, states_shape(outputs())), dhn = blank(d.dtype, states_shape(outputs()));
    h0.uniform(3, -1, 1), dhn.uniform(5, -1, 1);
  }
  if (states && d.cell == Cell::lstm) {
    c0 = blank(cell_dtype, states_shape(d.hidden)), dcn = blank(cell_dtype, states_shape(d.hidden));
    c0.uniform(4, -1, 1), dcn.uniform(6, -1, 1);
  }
  random_weights(c.flag("bias", true));
  if (d.resets) {
    resets = HostTensor(DType::u8, {sizes.steps, sizes.batch});
    resets.integers(8, 0, 2);  // two edges of three are cut
  }
  if (!d.lengths) return;
  lengths = random_lengths(c.text("lengths", "random"), sizes);
  poison_padding(*this, x);
  poison_padding(*this, dy);
}

void RecurrentProblem::random_weights(bool bias) {
  const RecurrentDescription& d = description;
  // torch's own range, so that gates are neither dead nor saturated
  const double range = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(d.hidden, 1)));
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.layers * d.directions()); ++i) {
    HostWeights w{blank(d.dtype, {gates(), inputs_of(i)}), blank(d.dtype, {gates(), outputs()}), {}, {}, {}};
    w.w_ih.uniform(20 + 10 * i, -range, range), w.w_hh.uniform(21 + 10 * i, -range, range);
    if (bias) {
      w.b_ih = HostTensor(d.dtype, {gates()}), w.b_hh = HostTensor(d.dtype, {gates()});
      w.b_ih.uniform(22 + 10 * i, -range, range), w.b_hh.uniform(23 + 10 * i, -range, range);
    }
    if (d.projection > 0) w.w_hr = blank(d.dtype, {d.projection, d.hidden}), w.w_hr.uniform(24 + 10 * i, -range, range);
    weights.push_back(w);
  }
}

RecurrentProblem RecurrentProblem::as(DType dtype) const {
  RecurrentProblem out = *this;
  out.description.dtype = out.cell_dtype = out.gradient_dtype = dtype;
  const auto convert = [&](HostTensor& tensor) {
    if (!tensor.view().given()) return;
    const ConstTensorView view = tensor.const_view();
    const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    HostTensor other = view.rank == 1 ? HostTensor(dtype, shape) : blank(dtype, shape);
    other.set(tensor.values());
    tensor = other;
  };
  for (HostTensor* tensor : {&out.x, &out.h0, &out.c0, &out.dy, &out.dhn, &out.dcn}) convert(*tensor);
  for (HostWeights& w : out.weights)
    for (HostTensor* tensor : {&w.w_ih, &w.w_hh, &w.b_ih, &w.b_hh, &w.w_hr}) convert(*tensor);
  return out;
}

std::vector<RecurrentWeights> RecurrentProblem::weight_views() const {
  std::vector<RecurrentWeights> out;
  for (const HostWeights& w : weights) out.push_back({w.w_ih, w.w_hh, w.b_ih, w.b_hh, w.w_hr});
  return out;
}

std::vector<RecurrentWeightGradients> gradient_views(const RecurrentResult& result) {
  std::vector<RecurrentWeightGradients> out;
  for (const HostWeights& w : result.dweights) out.push_back({w.w_ih, w.w_hh, w.b_ih, w.b_hh, w.w_hr});
  return out;
}

std::vector<std::pair<std::string, HostTensor>> RecurrentResult::outputs() const {
  std::vector<std::pair<std::string, HostTensor>> out{{"y", y}, {"hn", hn}, {"cn", cn}, {"dx", dx}, {"dh0", dh0}, {"dc0", dc0}};
  for (std::size_t i = 0; i < dweights.size(); ++i) {
    const std::string label = std::to_string(i);
    const HostWeights& w = dweights[i];
    out.insert(out.end(), {{"w_ih." + label, w.w_ih},
                           {"w_hh." + label, w.w_hh},
                           {"b_ih." + label, w.b_ih},
                           {"b_hh." + label, w.b_hh},
                           {"w_hr." + label, w.w_hr}});
  }
  std::erase_if(out, [](const auto& entry) { return !entry.second.const_view().given(); });
  return out;
}

RecurrentResult blank_result(const RecurrentProblem& p, const RecurrentPlan& plan) {
  const RecurrentDescription& d = p.description;
  const auto like = [&](const HostTensor& tensor, DType dtype) {
    const ConstTensorView view = tensor.const_view();
    if (!view.given()) return HostTensor();
    const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    return view.rank == 1 ? HostTensor(dtype, shape) : p.blank(dtype, shape);
  };
  const auto gradient = [&](const HostTensor& tensor) { return like(tensor, p.gradient_dtype); };
  RecurrentResult r;
  r.y = p.blank(d.dtype, {p.sizes.steps, p.sizes.batch, p.width()});
  r.hn = p.blank(d.dtype, p.states_shape(p.outputs()));
  if (d.cell == Cell::lstm) r.cn = p.blank(p.cell_dtype, p.states_shape(d.hidden));
  r.reserve = Scratch(plan.reserve_bytes()), r.workspace = Scratch(plan.workspace_bytes());
  if (!d.training) return r;
  r.dx = like(p.x, d.dtype), r.dh0 = like(r.hn, d.dtype), r.dc0 = like(r.cn, p.cell_dtype);
  for (const HostWeights& w : p.weights)
    r.dweights.push_back({gradient(w.w_ih), gradient(w.w_hh), gradient(w.b_ih), gradient(w.b_hh), gradient(w.w_hr)});
  return r;
}

RecurrentForward forward_tensors(const RecurrentProblem& p, const RecurrentResult& r,
                                 const std::vector<RecurrentWeights>& weights) {
  RecurrentForward t{.x = p.x, .h0 = p.h0, .c0 = p.c0, .weights = weights, .y = r.y, .hn = r.hn, .cn = r.cn};
  if (p.description.training) t.reserve = TensorView(r.reserve.data(), DType::u8, {static_cast<std::int64_t>(r.reserve.bytes())});
  if (p.description.lengths) t.lengths = p.lengths;
  if (p.description.resets) t.resets = p.resets;
  if (p.description.dropout > 0) t.dropout_seed = p.dropout_seed, t.dropout_offset = p.dropout_offset;
  return t;
}

RecurrentBackward backward_tensors(const RecurrentProblem& p, const RecurrentResult& r,
                                   const std::vector<RecurrentWeights>& weights,
                                   const std::vector<RecurrentWeightGradients>& gradients) {
  RecurrentBackward t{.x = p.x, .h0 = p.h0, .c0 = p.c0, .weights = weights, .y = r.y};
  t.reserve = ConstTensorView(r.reserve.data(), DType::u8, {static_cast<std::int64_t>(r.reserve.bytes())});
  if (p.description.lengths) t.lengths = p.lengths;
  if (p.description.resets) t.resets = p.resets;
  if (p.description.dropout > 0) t.dropout_seed = p.dropout_seed, t.dropout_offset = p.dropout_offset;
  t.dy = p.dy, t.dhn = p.dhn, t.dcn = p.dcn;
  t.dx = r.dx, t.dh0 = r.dh0, t.dc0 = r.dc0;
  t.dweights = gradients;
  return t;
}

bool accepts(const std::string& row, const RecurrentProblem& p) {
  const RecurrentPlan plan(p.description, p.sizes);  // which outlives the explanation
  for (const ExplanationRow& entry : plan.explain().rows)
    if (entry.name == row) return entry.taken || entry.reason.starts_with("accepts");
  return false;
}

RecurrentResult run_recurrent(const RecurrentProblem& p, const PlanOptions& options, const RecurrentRun& how) {
  const RecurrentPlan plan(p.description, p.sizes, how.device, options);
  RecurrentResult r = blank_result(p, plan);
  std::vector<RecurrentWeights> weights = p.weight_views();
  if (how.packed) {
    r.packed_bytes = Scratch(plan.packed_bytes());
    r.packed.bytes = TensorView(r.packed_bytes.data(), DType::u8, {static_cast<std::int64_t>(r.packed_bytes.bytes())});
    Placement place(how.device.device);
    std::vector<RecurrentWeights> there;
    for (const RecurrentWeights& w : place(std::span<const RecurrentWeights>(weights))) there.push_back(w);
    PackedWeights packed{.bytes = place(r.packed.bytes)};
    plan.pack(there, packed, place.stream());
    place.finish();
    r.packed.key = packed.key;
    for (RecurrentWeights& w : weights) w.w_ih = {}, w.w_hh = {}, w.w_hr = {};
  }
  RecurrentForward forward = forward_tensors(p, r, weights);
  if (how.packed) forward.packed = &r.packed;
  forward_on(how.device.device, plan, forward, r.workspace);
  if (how.backward && p.description.training) {
    const Scratch fresh(plan.workspace_bytes());  // backward finds nothing in its workspace
    const auto gradients = gradient_views(r);
    RecurrentBackward backward = backward_tensors(p, r, weights, gradients);
    if (how.packed) backward.packed = &r.packed;
    backward_on(how.device.device, plan, backward, fresh);
    r.guards = fresh.guards_intact();
  }
  r.guards = r.guards && r.reserve.guards_intact() && r.workspace.guards_intact() && r.packed_bytes.guards_intact();
  for (const auto& [name, tensor] : r.outputs()) r.guards = r.guards && tensor.guards_intact();
  return r;
}

}  // namespace everglow::proof
