// Classifier loss: every case and every accepting row against the reference in f64, with and without accumulation and dx.
#include "cases/case.hpp"
#include "ops/small_layers.hpp"

#include <everglow/loss.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow {
namespace {

using cases::Case;
using test::HostTensor;

struct Problem {
  LossDescription d;
  std::int64_t rows = 0;
  bool has_bias = false, strided = false;
  HostTensor x, weight, bias, targets, scale;

  LossForward forward(const HostTensor& loss, const HostTensor& count) const {
    return {.x = x,
            .weight = weight,
            .bias = has_bias ? bias.const_view() : ConstTensorView(),
            .targets = targets,
            .loss = loss,
            .count = count};
  }
};

Problem make_problem(const Case& c) {
  Problem p;
  p.rows = c.integer("rows", 1);
  p.d = {.inputs = c.integer("inputs", 1),
         .classes = c.integer("classes", 1),
         .dtype = parse_dtype(c.text("dtype", "f32")),
         .smoothing = static_cast<float>(c.number("smoothing", 0)),
         .ignore_index = c.flag("wide") ? -100 : 0,
         .training = true};
  p.has_bias = c.flag("bias"), p.strided = c.flag("strided");
  p.x = HostTensor(p.d.dtype, {p.rows, p.d.inputs}, p.strided ? p.d.inputs + 5 : 0);
  p.weight = HostTensor(p.d.dtype, {p.d.classes, p.d.inputs}, p.strided ? p.d.inputs + 3 : 0);
  p.bias = HostTensor(p.d.dtype, {p.d.classes});
  p.targets = HostTensor(c.flag("wide") ? DType::i64 : DType::i32, {p.rows});
  p.scale = HostTensor(DType::f32, {1});
  p.x.uniform(1, -1, 1);
  p.weight.uniform(2, -1, 1);
  p.bias.uniform(3, -1, 1);
  p.scale.fill(1.5);
  p.targets.integers(4, 0, static_cast<int>(std::max<std::int64_t>(p.d.classes, 1) - 1));
  if (p.d.classes > 1) {  // class 0 is the ignored one of narrow targets, so that only the chosen rows are ignored
    for (std::int64_t n = 0; n < p.rows; ++n)
      if (p.targets.at(n) == static_cast<double>(p.d.ignore_index)) p.targets.put(n, 1);
  } else if (p.d.classes == 1) {
    p.d.ignore_index = -1;
  }
  const std::int64_t every = c.integer("ignored", 0), tail = c.integer("tail", 0);
  for (std::int64_t n = 0; n < p.rows; ++n)
    if ((every > 0 && n % every == 0) || n >= p.rows - tail) p.targets.put(n, static_cast<double>(p.d.ignore_index));
  return p;
}

/// The same problem in f64, on the values that the storage type holds.
Problem in_f64(const Problem& p) {
  Problem e = p;
  e.d.dtype = DType::f64;
  e.x = HostTensor(DType::f64, {p.rows, p.d.inputs});
  e.weight = HostTensor(DType::f64, {p.d.classes, p.d.inputs});
  e.bias = HostTensor(DType::f64, {p.d.classes});
  e.x.set(p.x.values());
  e.weight.set(p.weight.values());
  e.bias.set(p.bias.values());
  return e;
}

/// What forward_backward gives.
struct Results {
  HostTensor loss, count, dx, dweight, dbias;
  Results(const Problem& p, DType loss_dtype)
      : loss(loss_dtype, {1}),
        count(DType::f32, {1}),
        dx(p.d.dtype, {p.rows, p.d.inputs}, p.strided ? p.d.inputs + 1 : 0),
        dweight(p.d.dtype, {p.d.classes, p.d.inputs}, p.strided ? p.d.inputs + 2 : 0),
        dbias(p.d.dtype, {p.d.classes}) {}
};

/// The largest probability that any counted row gives any class.
double largest_probability(const Problem& e) {
  double largest = 0;
  std::vector<double> z(static_cast<std::size_t>(e.d.classes));
  for (std::int64_t n = 0; n < e.rows; ++n) {
    if (e.targets.at(n) == static_cast<double>(e.d.ignore_index)) continue;
    double sum = 0, top = 0;
    for (std::int64_t c = 0; c < e.d.classes; ++c) {
      double logit = e.has_bias ? e.bias.at(c) : 0;
      for (std::int64_t i = 0; i < e.d.inputs; ++i) logit += e.x.at(n * e.d.inputs + i) * e.weight.at(c * e.d.inputs + i);
      sum += z[static_cast<std::size_t>(c)] = std::exp(logit);
      top = std::max(top, z[static_cast<std::size_t>(c)]);
    }
    largest = std::max(largest, top / sum);
  }
  return largest;
}

/// Errors of an f32 row, with u its roundoff and storage the type's. |x|, |w|, |b| <= 1, so a logit, a sum of inputs + 1 terms of
/// at most 1, is within e = (inputs + 1)^2 u of the exact one. With V classes the sum of exponentials is within (V + 8) u of itself
/// (V additions; exponentials within 4 u, whose arguments are within 2 (inputs + 1) u) and so is each probability p: relative error
/// r = 2 e + (V + 16 + 4 (inputs + 1)) u; V u is never reached but holds for any order. A gradient of a logit, p - (1 - s) [target]
/// - s / V, is then within r p + 4 u (p + [target] + s / V). Where n_t rows have a class as their target, its dW and db add that
/// over n rows, and n u times the magnitudes that are summed; dx adds it over the classes, whose p sum to 1, and V u times 2.
struct Bounds {
  double loss, dx, dweight, dbias;
};
Bounds bounds_of(const Problem& p, double counted, double factor, bool accumulate) {
  const double u = test::unit_roundoff(DType::f32), storage = test::unit_roundoff(p.d.dtype);
  const double reach = static_cast<double>(p.d.inputs) + 1, classes = static_cast<double>(p.d.classes), before = accumulate ? 1 : 0;
  const double e = reach * reach * u, r = 2 * e + (classes + 16 + 4 * reach) * u;
  double most = 0;  // n_t
  std::vector<double> uses(static_cast<std::size_t>(p.d.classes), 0);
  for (std::int64_t n = 0; n < p.rows; ++n)
    if (p.targets.at(n) != static_cast<double>(p.d.ignore_index))
      most = std::max(most, ++uses[static_cast<std::size_t>(p.targets.at(n))]);
  const double magnitude = counted * (largest_probability(in_f64(p)) + 1 / std::max(classes, 1.0)) + most;
  const double largest_loss = std::log(std::max(classes, 1.0)) + 4 * reach;
  Bounds b{};
  b.loss = counted * (2 * e + (classes + 8 + 8 * largest_loss) * u) + u * counted * largest_loss;
  b.dx = factor * (r + 12 * u + 2 * classes * u + 2 * storage) + 1e-30;
  b.dweight = factor * magnitude * (r + 4 * u + counted * u + storage) + (storage + u) * before + counted * u * before + 1e-30;
  b.dbias = b.dweight;
  return b;
}

class LossCases : public testing::TestWithParam<Case> {};

void expect_row_agrees(const Problem& p, const std::string& row, bool accumulate, bool mean) {
  const Problem e = in_f64(p);
  Results exact(e, DType::f64), actual(p, DType::f32);
  for (Results* r : {&exact, &actual})
    if (accumulate) r->dweight.uniform(7, -1, 1), r->dbias.uniform(8, -1, 1);
  if (accumulate) exact.dweight.set(actual.dweight.values()), exact.dbias.set(actual.dbias.values());
  const LossPlan reference(e.d, {p.rows}, Device::cpu(), {.force = "reference.loss"}),
      plan(p.d, {p.rows}, Device::cpu(), {.force = row});
  const auto run = [&](const LossPlan& which, const Problem& problem, const Results& r) {
    const test::Scratch scratch(which.workspace_bytes());
    which.forward_backward({.forward = problem.forward(r.loss, r.count),
                            .scale = p.scale,
                            .divide_by_count = mean,
                            .dx = r.dx,
                            .dweight = r.dweight,
                            .dbias = r.dbias,
                            .accumulate = accumulate},
                           {scratch.data(), scratch.bytes()});
    EXPECT_TRUE(scratch.guards_intact());
  };
  run(reference, e, exact);
  run(plan, p, actual);
  const double counted = exact.count.at(0), factor = mean ? 1.5 / std::max(counted, 1.0) : 1.5;
  const Bounds bound = bounds_of(p, counted, factor, accumulate);
  EXPECT_EQ(actual.count.at(0), counted);
  EXPECT_EQ("", test::compare(actual.loss.values(), exact.loss.values(), bound.loss));
  EXPECT_EQ("", test::compare(actual.dx.values(), exact.dx.values(), bound.dx));
  EXPECT_EQ("", test::compare(actual.dweight.values(), exact.dweight.values(), bound.dweight));
  EXPECT_EQ("", test::compare(actual.dbias.values(), exact.dbias.values(), bound.dbias));
  for (const auto* tensor : {&actual.loss, &actual.count, &actual.dx, &actual.dweight, &actual.dbias})
    EXPECT_TRUE(tensor->guards_intact());
  for (std::int64_t n = 0; n < p.rows; ++n) {
    const bool ignored = p.targets.at(n) == static_cast<double>(p.d.ignore_index);
    for (std::int64_t i = 0; ignored && i < p.d.inputs; ++i) EXPECT_EQ(actual.dx.at(n * p.d.inputs + i), 0);
  }

  const test::Scratch scratch(plan.workspace_bytes());
  HostTensor loss(DType::f32, {1}), count(DType::f32, {1});
  plan.forward(p.forward(loss, count), {scratch.data(), scratch.bytes()});
  EXPECT_EQ(loss.at(0), actual.loss.at(0)) << "forward alone";
  EXPECT_EQ(count.at(0), counted);
}

TEST_P(LossCases, EveryRowAgreesWithTheReference) {
  const Problem p = make_problem(GetParam());
  for (const auto& row : test::accepting_rows<LossPlan>("loss", p.d, LossSizes{p.rows}))
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(row + (accumulate ? " accumulate" : ""));
      expect_row_agrees(p, row, accumulate, !accumulate);
    }
}

TEST_P(LossCases, ThreadCountsGiveTheSameBits) {
  const Problem p = make_problem(GetParam());
  if (p.d.dtype != DType::f32) return;
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    const LossPlan plan(p.d, {p.rows + 7 * threads}, Device::cpu(),
                        {.threads = threads, .force = "cpu.loss", .deterministic = true});
    const test::Scratch scratch(plan.workspace_bytes());
    const Results r(p, DType::f32);
    plan.forward_backward({.forward = p.forward(r.loss, r.count), .dx = r.dx, .dweight = r.dweight, .dbias = r.dbias},
                          {scratch.data(), scratch.bytes()});
    std::vector<double> all;
    for (const auto* tensor : {&r.loss, &r.dx, &r.dweight, &r.dbias})
      for (const double value : tensor->values()) all.push_back(value);
    results.push_back(all);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Cpu, LossCases, testing::ValuesIn(cases::tested("loss")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

}  // namespace
}  // namespace everglow
