// The linear layer as a benchmark.
#include "bench/peers.hpp"
#include "bench/rows.hpp"

namespace everglow::bench {
namespace {

std::vector<Pass> passes(const LinearPlan& plan, const std::shared_ptr<const LinearTensors>& t, std::int64_t sets, bool packed) {
  const Buffer workspace(plan.workspace_bytes(), Device::cpu());
  const ByteSets memory(packed ? plan.packed_bytes() : 0, sets);
  std::shared_ptr<const std::vector<PackedWeights>> ready;
  if (packed && plan.packed_bytes() > 0)
    ready = packed_sets(memory, sets, [&](std::int64_t i, PackedWeights& out) { plan.pack(t->at(t->weight, i), out); });
  const auto of = [ready, memory](std::int64_t i) { return ready ? &(*ready)[static_cast<std::size_t>(i)] : nullptr; };
  const auto forward = [=](std::int64_t i) {
    plan.forward({.x = t->at(t->x, i),
                  .weight = t->at(t->weight, i),
                  .bias = t->at(t->bias, i),
                  .y = t->at(t->y, i),
                  .preactivation = t->at(t->z, i),
                  .packed = of(i)},
                 workspace);
  };
  const auto backward = [=](std::int64_t i) {
    plan.backward({.dy = t->at(t->dy, i),
                   .x = t->at(t->x, i),
                   .weight = t->at(t->weight, i),
                   .preactivation = t->at(t->z, i),
                   .dx = t->at(t->dx, i),
                   .dweight = t->at(t->dweight, i),
                   .dbias = t->at(t->dbias, i),
                   .packed = of(i)},
                  workspace);
  };
  return {{{}, forward}, {forward, backward}};
}

}  // namespace

Problem linear_problem(const cases::Case& c, const Settings& settings) {
  const LinearSizes sizes{.batch = c.integer("batch", 1)};
  const LinearDescription d{.inputs = c.integer("inputs", 1),
                            .outputs = c.integer("outputs", 1),
                            .dtype = dtype_of(c),
                            .layout = named<LinearLayout>(c, "layout", {"outputs_inputs", "inputs_outputs"}),
                            .activation = activation_of(c),
                            .training = true};
  const auto t = std::make_shared<LinearTensors>();
  const std::vector<std::int64_t> in{sizes.batch, d.inputs}, out{sizes.batch, d.outputs};
  const std::vector<std::int64_t> weight =
      d.layout == LinearLayout::outputs_inputs ? std::vector{d.outputs, d.inputs} : std::vector{d.inputs, d.outputs};
  TensorSets& s = t->sets;
  t->x = s.add(d.dtype, in, -1, 1), t->weight = s.add(d.dtype, weight, -0.1, 0.1), t->y = s.add(d.dtype, out);
  t->dy = s.add(d.dtype, out, -1, 1), t->dx = s.add(d.dtype, in), t->dweight = s.add(d.dtype, weight);
  if (c.flag("bias", true)) t->bias = s.add(d.dtype, {d.outputs}, -1, 1), t->dbias = s.add(d.dtype, {d.outputs});
  if (d.activation != Activation::none) t->z = s.add(d.dtype, out);
  s.allocate(settings.rotate_bytes, settings.seed);

  const double product = 2.0 * static_cast<double>(sizes.batch * d.inputs * d.outputs);
  const auto bytes = [&s](std::initializer_list<int> all) { return s.bytes(all); };
  Problem problem{std::string(name(d.dtype)),
                  {{"forward", product, bytes({t->x, t->weight, t->y}), Part::forward},
                   {"backward", 2 * product, bytes({t->dy, t->x, t->weight, t->dx, t->dweight}), Part::rest}},
                  {}};
  append_rows<LinearPlan>(problem, settings, s, d, sizes,
                          [&](const LinearPlan& plan, std::int64_t sets) { return passes(plan, t, sets, c.flag("packed")); });
  if (settings.peers) append_peers(problem, onednn_linear(d, sizes, t, settings.threads));
  return problem;
}

}  // namespace everglow::bench
