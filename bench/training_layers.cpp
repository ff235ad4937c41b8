// The classifier loss and the optimiser as benchmarks.
#include "bench/rows.hpp"

namespace everglow::bench {

Problem loss_problem(const cases::Case& c, const Settings& settings) {
  LossDescription d{.inputs = c.integer("inputs", 1), .classes = c.integer("classes", 1), .dtype = dtype_of(c)};
  d.smoothing = static_cast<float>(c.number("smoothing", 0)), d.training = true;
  const LossSizes sizes{.rows = c.integer("rows", 1)};
  const bool bias = c.flag("bias", true);
  const auto t = std::make_shared<TensorSets>();
  const int x = t->add(d.dtype, {sizes.rows, d.inputs}, -1, 1), weight = t->add(d.dtype, {d.classes, d.inputs}, -0.1, 0.1);
  const int b = t->add(d.dtype, {d.classes}, -1, 1), targets = t->add_indices(DType::i32, {sizes.rows}, d.classes);
  const int loss = t->add(d.dtype == DType::f64 ? DType::f64 : DType::f32, {1});
  const int dx = t->add(d.dtype, {sizes.rows, d.inputs}), dweight = t->add(d.dtype, {d.classes, d.inputs});
  const int dbias = t->add(d.dtype, {d.classes});
  t->allocate(places(settings));
  const auto passes = [&](const LossPlan& plan, std::int64_t) -> std::vector<Pass> {
    const Buffer workspace(plan.workspace_bytes(), settings.where());
    const Stream stream = settings.stream();
    const auto tensors = [=](std::int64_t i) {
      LossForward f{.x = t->at(x, i), .weight = t->at(weight, i), .bias = {}, .targets = t->at(targets, i), .loss = t->at(loss, i)};
      if (bias) f.bias = t->at(b, i);
      return f;
    };
    const auto both = [=](std::int64_t i) {
      LossBackward run{.forward = tensors(i), .scale = {}, .dx = t->at(dx, i), .dweight = t->at(dweight, i)};
      if (bias) run.dbias = t->at(dbias, i);
      plan.forward_backward(run, workspace, stream);
    };
    return {{{}, [=](std::int64_t i) { plan.forward(tensors(i), workspace, stream); }}, {{}, both}};
  };
  const double product = 2.0 * static_cast<double>(sizes.rows * d.inputs * d.classes);
  Problem out{std::string(name(d.dtype)),
              {{"forward", product, t->bytes({x, weight}), Part::forward},
               {"forward_backward", 3 * product, t->bytes({x, weight, dx, dweight})}},
              {}};
  append_rows<LossPlan>(out, settings, *t, d, sizes, passes);
  return out;
}

Problem adam_problem(const cases::Case& c, const Settings& settings) {
  AdamDescription d;
  d.clip = static_cast<float>(c.number("clip", 0));
  const AdamSizes sizes{.parameters = c.integer("parameters", 1), .tensors = c.integer("tensors", 1)};
  if (sizes.tensors < 1) throw std::invalid_argument("case: tensors: expected at least 1");
  const auto t = std::make_shared<TensorSets>();
  struct Numbers {
    int parameter, gradient, m, v;
  };
  std::vector<Numbers> numbers;
  for (std::int64_t i = 0; i < sizes.tensors; ++i) {
    const std::int64_t n = sizes.parameters * (i + 1) / sizes.tensors - sizes.parameters * i / sizes.tensors;
    numbers.push_back(
        {t->add(DType::f32, {n}, -1, 1), t->add(DType::f32, {n}, -1, 1), t->add(DType::f32, {n}), t->add(DType::f32, {n})});
  }
  const int step = t->add(DType::i64, {1}), rate = t->add(DType::f32, {1}, 0.001, 0.0011), norm = t->add(DType::f32, {1});
  t->allocate(places(settings));
  const auto passes = [&](const AdamPlan& plan, std::int64_t) -> std::vector<Pass> {
    const Buffer workspace(plan.workspace_bytes(), settings.where());
    const Stream stream = settings.stream();
    return {{{}, [=](std::int64_t i) {
               std::vector<AdamTensor> tensors;
               for (const Numbers& of : numbers)
                 tensors.push_back({.parameter = t->at(of.parameter, i),
                                    .gradient = t->at(of.gradient, i),
                                    .m = t->at(of.m, i),
                                    .v = t->at(of.v, i)});
               plan.step({.tensors = tensors, .step = t->at(step, i), .rate = t->at(rate, i), .scale = {}, .norm = t->at(norm, i)},
                         workspace, stream);
             }}};
  };
  // Reads parameter, gradient and both moments, and writes all but the gradient; clipping reads the gradient once more.
  const double elements = static_cast<double>(sizes.parameters) * 4 * (d.clip > 0 ? 8 : 7);
  Problem out{"f32", {{"step", 0, elements}}, {}};
  append_rows<AdamPlan>(out, settings, *t, d, sizes, passes);
  return out;
}

}  // namespace everglow::bench
