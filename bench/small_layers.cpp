// Softmax, embedding, pointwise operations and a copy as benchmarks: all are bound by memory, so they count no arithmetic.
#include "bench/rows.hpp"

namespace everglow::bench {

Problem softmax_problem(const cases::Case& c, const Settings& settings) {
  const SoftmaxDescription d{.dtype = dtype_of(c), .log = c.flag("log")};
  const SoftmaxSizes sizes{.rows = c.integer("rows", 1), .columns = c.integer("columns", 1)};
  const auto t = std::make_shared<TensorSets>();
  const std::vector<std::int64_t> shape{sizes.rows, sizes.columns};
  const int x = t->add(d.dtype, shape, -4, 4), y = t->add(d.dtype, shape);
  const int dy = t->add(d.dtype, shape, -1, 1), dx = t->add(d.dtype, shape);
  t->allocate(places(settings));
  const auto passes = [&](const SoftmaxPlan& plan, std::int64_t) -> std::vector<Pass> {
    const Buffer workspace(plan.workspace_bytes(), settings.where());
    const Stream stream = settings.stream();
    const auto forward = [=](std::int64_t i) { plan.forward({.x = t->at(x, i), .y = t->at(y, i)}, workspace, stream); };
    const auto backward = [=](std::int64_t i) {
      plan.backward({.y = t->at(y, i), .dy = t->at(dy, i), .dx = t->at(dx, i)}, workspace, stream);
    };
    return {{{}, forward}, {forward, backward}};
  };
  Problem out{std::string(name(d.dtype)), {{"forward", 0, t->bytes({x, y})}, {"backward", 0, t->bytes({y, dy, dx})}}, {}};
  out.directions[1].share = 1.5;  // the plan explains forward: two tensors and not three
  append_rows<SoftmaxPlan>(out, settings, *t, d, sizes, passes);
  return out;
}

Problem embedding_problem(const cases::Case& c, const Settings& settings) {
  EmbeddingDescription d{.vocabulary = c.integer("vocabulary", 1), .width = c.integer("width", 1)};
  d.dtype = dtype_of(c);
  const EmbeddingSizes sizes{.indices = c.integer("indices", 1)};
  const auto t = std::make_shared<TensorSets>();
  const int indices = t->add_indices(DType::i32, {sizes.indices}, d.vocabulary);
  const int table = t->add(d.dtype, {d.vocabulary, d.width}, -1, 1), dtable = t->add(d.dtype, {d.vocabulary, d.width});
  const int y = t->add(d.dtype, {sizes.indices, d.width}), dy = t->add(d.dtype, {sizes.indices, d.width}, -1, 1);
  t->allocate(places(settings));
  const auto passes = [&](const EmbeddingPlan& plan, std::int64_t) -> std::vector<Pass> {
    const Buffer workspace(plan.workspace_bytes(), settings.where());
    const Stream stream = settings.stream();
    const auto forward = [=](std::int64_t i) {
      plan.forward({.indices = t->at(indices, i), .table = t->at(table, i), .y = t->at(y, i)}, workspace, stream);
    };
    const auto backward = [=](std::int64_t i) {
      plan.backward({.indices = t->at(indices, i), .dy = t->at(dy, i), .dtable = t->at(dtable, i)}, workspace, stream);
    };
    return {{{}, forward}, {{}, backward}};
  };
  // Forward reads a row for each index; backward writes the whole gradient of the table.
  Problem out{std::string(name(d.dtype)), {{"forward", 0, 2 * t->bytes({y})}, {"backward", 0, t->bytes({dy, dtable})}}, {}};
  if (sizes.indices * d.width > 0) out.directions[1].share = out.directions[1].bytes / out.directions[0].bytes;
  append_rows<EmbeddingPlan>(out, settings, *t, d, sizes, passes);
  return out;
}

Problem pointwise_problem(const cases::Case& c, const Settings& settings) {
  const PointwiseDescription d{
      .operation = named<Pointwise>(c, "operation",
                                    {"copy", "add", "multiply", "scale", "fill", "dropout", "activation", "activation_gradient"}),
      .dtype = dtype_of(c),
      .activation = activation_of(c),
      .factor = static_cast<float>(c.number("factor", 1)),
      .dropout = static_cast<float>(c.number("dropout", 0))};
  const bool second =
      d.operation == Pointwise::add || d.operation == Pointwise::multiply || d.operation == Pointwise::activation_gradient;
  const bool first = d.operation != Pointwise::fill, dropout = d.operation == Pointwise::dropout;
  const std::vector<std::int64_t> shape{c.integer("rows", 1), c.integer("columns", 1)};
  const auto t = std::make_shared<TensorSets>();
  const int a = t->add(d.dtype, shape, -1, 1), b = t->add(d.dtype, shape, -1, 1), y = t->add(d.dtype, shape);
  t->allocate(places(settings));
  const auto passes = [&](const PointwisePlan& plan, std::int64_t) -> std::vector<Pass> {
    const Buffer workspace(plan.workspace_bytes(), settings.where());
    const Stream stream = settings.stream();
    const auto run = [=](std::int64_t i) {
      PointwiseRun r{.a = {}, .b = {}, .y = t->at(y, i), .dropout_seed = dropout ? 1U : 0U};
      if (first) r.a = t->at(a, i);
      if (second) r.b = t->at(b, i);
      plan.run(r, workspace, stream);
    };
    return {{{}, run}};
  };
  const double tensors = 1 + (first ? 1 : 0) + (second ? 1 : 0);
  Problem out{std::string(name(d.dtype)), {{"run", 0, t->bytes({y}) * tensors}}, {}};
  out.directions[0].share = tensors / 3;  // the plan counts as many as an operation can have
  append_rows<PointwisePlan>(out, settings, *t, d, PointwiseSizes{shape[0] * shape[1]}, passes);
  return out;
}

/// What memory can do: as many bytes are read as written.
Problem copy_problem(const cases::Case& c, const Settings& settings) {
  const auto t = std::make_shared<TensorSets>();
  const std::vector<std::int64_t> shape{c.integer("bytes", 1) / 4};
  const int from = t->add(DType::f32, shape, -1, 1), to = t->add(DType::f32, shape);
  t->allocate(places(settings));
  const Stream stream = settings.stream();
  const double bytes = t->bytes({from, to}), bandwidth = roof_of(DType::f32, settings).bandwidth_gbs;
  Row row{"copy", t->sets(), {{{}, [=](std::int64_t i) { copy(t->at(to, i), t->at(from, i), stream); }}}};
  row.expected = {{.floor_us = bandwidth > 0 ? bytes / bandwidth / 1e3 : 0}};
  row.chosen = true;
  return {"f32", {{"run", 0, bytes}}, {row}};
}

}  // namespace everglow::bench
