// The linear layer as a benchmark. On a card each gradient is timed alone too.
#include "bench/cuda/peers.hpp"
#include "bench/rows.hpp"

namespace everglow::bench {
namespace {

enum class RowStride : std::uint8_t { dense, preferred };

/// What a backward pass computes.
struct Wanted {
  bool dx = true, dweight = true;
};

std::vector<Pass> passes(const LinearPlan& plan, const std::shared_ptr<const LinearTensors>& t, const Settings& settings,
                         std::int64_t sets, const cases::Case& c) {
  const bool packed = c.flag("packed"), tuned = c.flag("tuned");
  const Buffer workspace(plan.workspace_bytes(), settings.where());
  const Stream stream = settings.stream();
  const ByteSets memory(packed ? plan.packed_bytes() : 0, sets, settings.where());
  std::shared_ptr<const std::vector<PackedWeights>> ready;
  if (packed && plan.packed_bytes() > 0)
    ready = packed_sets(memory, sets, [&](std::int64_t i, PackedWeights& out) { plan.pack(t->at(t->weight, i), out, stream); });
  const auto of = [ready, memory](std::int64_t i) { return ready ? &(*ready)[static_cast<std::size_t>(i)] : nullptr; };
  const auto forward_tensors = [=](std::int64_t i) {
    return LinearForward{.x = t->at(t->x, i),
                         .weight = t->at(t->weight, i),
                         .bias = t->at(t->bias, i),
                         .y = t->at(t->y, i),
                         .preactivation = t->at(t->z, i),
                         .packed = of(i)};
  };
  const auto forward = [=](std::int64_t i) { plan.forward(forward_tensors(i), workspace, stream); };
  if (tuned) plan.tune(forward_tensors(0), workspace, stream);
  if (!t->training) return {{{}, forward}};
  const auto backward_tensors = [=](Wanted wanted, std::int64_t i) {
    LinearBackward b{.dy = t->at(t->dy, i), .x = t->at(t->x, i), .weight = t->at(t->weight, i)};
    b.preactivation = t->at(t->z, i), b.packed = of(i);
    if (wanted.dx) b.dx = t->at(t->dx, i);
    if (wanted.dweight) b.dweight = t->at(t->dweight, i), b.dbias = t->at(t->dbias, i);
    return b;
  };
  const auto backward = [=](Wanted wanted) {
    return [=](std::int64_t i) { plan.backward(backward_tensors(wanted, i), workspace, stream); };
  };
  if (tuned) plan.tune(backward_tensors({}, 0), workspace, stream);
  std::vector<Pass> out{{{}, forward}, {forward, backward({})}};
  if (settings.card) {
    out.push_back({forward, backward({.dweight = false})});
    out.push_back({forward, backward({.dx = false})});
  }
  return out;
}

LinearDescription description_of(const cases::Case& c) {
  return {.inputs = c.integer("inputs", 1),
          .outputs = c.integer("outputs", 1),
          .dtype = dtype_of(c),
          .layout = named<LinearLayout>(c, "layout", {"outputs_inputs", "inputs_outputs"}),
          .activation = activation_of(c),
          .training = c.flag("training", true)};
}

std::shared_ptr<const LinearTensors> tensors(const LinearDescription& d, const LinearSizes& sizes, const cases::Case& c,
                                             const Settings& settings) {
  const auto t = std::make_shared<LinearTensors>();
  t->training = d.training;
  TensorSets& s = t->sets;
  const LinearPlan plan(d, sizes, settings.device, {.threads = settings.threads, .advice = false});
  const bool preferred = named<RowStride>(c, "rows", {"dense", "preferred"}) == RowStride::preferred;
  const auto add = [&](std::int64_t rows, std::int64_t columns, double range) {
    return s.add(d.dtype, {rows, columns}, -range, range, preferred ? plan.preferred_stride(columns) : 0);
  };
  const bool outputs_first = d.layout == LinearLayout::outputs_inputs;
  const std::int64_t first = outputs_first ? d.outputs : d.inputs, second = outputs_first ? d.inputs : d.outputs;
  t->x = add(sizes.batch, d.inputs, 1), t->weight = add(first, second, 0.1), t->y = add(sizes.batch, d.outputs, 0);
  if (d.training) t->dy = add(sizes.batch, d.outputs, 1), t->dx = add(sizes.batch, d.inputs, 0), t->dweight = add(first, second, 0);
  if (c.flag("bias", true)) {
    t->bias = s.add(d.dtype, {d.outputs}, -1, 1);
    if (d.training) t->dbias = s.add(d.dtype, {d.outputs});
  }
  if (d.training && d.activation != Activation::none) t->z = add(sizes.batch, d.outputs, 0);
  s.allocate(places(settings));
  return t;
}

}  // namespace

Problem linear_problem(const cases::Case& c, const Settings& settings) {
  const LinearSizes sizes{.batch = c.integer("batch", 1)};
  const LinearDescription d = description_of(c);
  const auto t = tensors(d, sizes, c, settings);
  const TensorSets& s = t->sets;
  const double product = 2.0 * static_cast<double>(sizes.batch * d.inputs * d.outputs);
  Problem problem{std::string(name(d.dtype)), {{"forward", product, s.bytes({t->x, t->weight, t->y}), Part::forward}}, {}};
  if (d.training)
    problem.directions.push_back({"backward", 2 * product, s.bytes({t->dy, t->x, t->weight, t->dx, t->dweight}), Part::rest});
  if (d.training && settings.card) {
    problem.directions.push_back({"activation_gradient", product, s.bytes({t->dy, t->weight, t->dx}), Part::rest, 0.5});
    problem.directions.push_back({"weight_gradient", product, s.bytes({t->dy, t->x, t->dweight}), Part::rest, 0.5});
  }
  append_rows<LinearPlan>(problem, settings, s, d, sizes,
                          [&](const LinearPlan& plan, std::int64_t sets) { return passes(plan, t, settings, sets, c); });
  if (settings.peers && settings.card) append_peers(problem, with_captured(cublaslt_linear(d, sizes, t, settings), settings));
  if (settings.peers && !settings.card) append_peers(problem, onednn_linear(d, sizes, t, settings.threads));
  return problem;
}

}  // namespace everglow::bench
