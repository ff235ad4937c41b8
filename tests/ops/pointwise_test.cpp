// Elementwise operations: every case and every accepting row against the reference in f64, and errors.
#include "cases/case.hpp"
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace everglow {
namespace {

using cases::Case;
using test::gathered;
using test::HostTensor;
using test::scattered;

PointwiseDescription description_of(const Case& c) {
  return {.operation = test::parse_pointwise(c.text("operation", "copy")),
          .dtype = parse_dtype(c.text("dtype", "f32")),
          .activation = test::parse_activation(c.text("activation", "none")),
          .factor = static_cast<float>(c.number("factor", 1)),
          .dropout = static_cast<float>(c.number("dropout", 0))};
}

/// Memory of one operand and the [rows, columns] view of it that a layout asks for.
struct Operand {
  HostTensor memory;
  TensorView view;
};
Operand make_operand(DType dtype, std::int64_t rows, std::int64_t columns, const std::string& layout) {
  Operand o;
  if (layout == "transposed") {
    o.memory = HostTensor(dtype, {columns, rows});
    o.view = o.memory.view().transposed(0, 1);
  } else if (layout == "broadcast") {
    o.memory = HostTensor(dtype, {1, columns});
    o.view = o.memory.view();
    o.view.shape[0] = rows, o.view.strides[0] = 0;
  } else {
    o.memory = HostTensor(dtype, {rows, columns}, layout == "rows" ? columns + 5 : 0);
    o.view = o.memory.view();
  }
  return o;
}

struct Problem {
  PointwiseDescription d;
  std::int64_t rows, columns;
  Operand a, b;
  bool has_a, has_b;
  std::vector<double> exact, bound;  // what the reference says in f64, and how far a row may be from it
};

/// Roundings of an f32 operation, and one to the storage type. Sums, products and the mask round once or twice. The smooth
/// activations use e^x, tanh and erfc, whose absolute errors are below 8 u: an exponential within 2 units in the last place (4 u),
/// a quotient, and polynomials of degree 8 whose terms sum to below 2 in magnitude and whose late terms, where Horner's rule rounds
/// on values near 1, round twice each. They are multiplied by z, and in the slope of gelu_tanh by 0.5 z 0.8 (1 + 0.134 z^2), twice
/// for the square of tanh.
std::vector<double> bounds_of(const Problem& p) {
  const double u = test::unit_roundoff(DType::f32), storage = test::unit_roundoff(p.d.dtype);
  const auto a = p.has_a ? gathered(p.a.view) : std::vector<double>{}, b = p.has_b ? gathered(p.b.view) : std::vector<double>{};
  std::vector<double> bound;
  for (std::size_t i = 0; i < p.exact.size(); ++i) {
    const double y = std::fabs(p.exact[i]);
    double error = u * y;
    if (p.d.operation == Pointwise::dropout && p.d.dropout < 1)
      error += 2 * u * std::fabs(a[i]) / (1 - static_cast<double>(p.d.dropout));
    const bool smooth = p.d.activation > Activation::relu;
    const double z = smooth ? std::fabs(a[i]) : 0;
    if (smooth && p.d.operation == Pointwise::activation) error += 10 * u * z;
    if (smooth && p.d.operation == Pointwise::activation_gradient) error += 16 * u * (1 + z + 0.1 * z * z * z) * std::fabs(b[i]);
    bound.push_back(error + storage * y + (p.d.dtype == DType::f16 ? 0x1p-25 : 1e-37));
  }
  return bound;
}

Problem make_problem(const Case& c) {
  Problem p;
  p.d = description_of(c);
  p.rows = c.integer("rows", 1), p.columns = c.integer("columns", 1);
  const std::string layout = c.text("layout", "dense");
  p.has_a = p.d.operation != Pointwise::fill;
  p.has_b = p.d.operation == Pointwise::add || p.d.operation == Pointwise::multiply || p.d.operation == Pointwise::dropout ||
            p.d.operation == Pointwise::activation_gradient;
  const DType source = p.d.operation == Pointwise::copy ? parse_dtype(c.text("source", name(p.d.dtype))) : p.d.dtype;
  p.a = make_operand(source, p.rows, p.columns, layout);
  p.b = make_operand(p.d.dtype, p.rows, p.columns, "dense");
  p.a.memory.uniform(1, -6, 6);
  p.b.memory.uniform(2, -2, 2);
  PointwiseDescription exact = p.d;
  exact.dtype = DType::f64;
  HostTensor a64(DType::f64, {p.rows, p.columns}), b64(DType::f64, {p.rows, p.columns}), y64(DType::f64, {p.rows, p.columns});
  a64.set(gathered(p.a.view));
  b64.set(gathered(p.b.view));
  PointwiseRun run{.a = {}, .b = {}, .y = y64};
  if (p.has_a) run.a = a64;
  if (p.has_b) run.b = b64;
  if (p.d.operation == Pointwise::dropout) run.dropout_seed = 1234, run.dropout_offset = 77;
  PointwisePlan(exact, {p.rows * p.columns}, Device::cpu(), {.force = "reference.pointwise"}).run(run);
  p.exact = y64.values();
  p.bound = bounds_of(p);
  return p;
}

PointwiseRun run_of(const Problem& p, const TensorView& y) {
  PointwiseRun run{.a = {}, .b = {}, .y = y};
  if (p.has_a) run.a = p.a.view;
  if (p.has_b) run.b = p.b.view;
  if (p.d.operation == Pointwise::dropout) run.dropout_seed = 1234, run.dropout_offset = 77;
  return run;
}

class PointwiseCases : public testing::TestWithParam<Case> {};

TEST_P(PointwiseCases, EveryRowAgreesWithTheReference) {
  const Problem p = make_problem(GetParam());
  const std::string layout = GetParam().text("layout", "dense");
  for (const auto& row : test::accepting_rows<PointwisePlan>("pointwise", p.d, PointwiseSizes{p.rows * p.columns})) {
    SCOPED_TRACE(row);
    for (const int threads : {1, 2, 3}) {
      const PointwisePlan plan(p.d, {p.rows * p.columns}, Device::cpu(), {.threads = threads, .force = row});
      EXPECT_EQ(plan.workspace_bytes(), 0U);
      for (const char* target : {"dense", "rows", "transposed"}) {
        const Operand y = make_operand(p.d.dtype, p.rows, p.columns, target);
        plan.run(run_of(p, y.view));
        EXPECT_EQ("", test::compare(gathered(y.view), p.exact, p.bound));
        EXPECT_TRUE(y.memory.guards_intact());
      }
    }
  }
}

TEST_P(PointwiseCases, InPlaceGivesTheSame) {
  const Problem p = make_problem(GetParam());
  const bool repeated = p.rows > 1 && p.a.view.strides[0] == 0;  // cannot be written
  for (const auto& row : test::accepting_rows<PointwisePlan>("pointwise", p.d, PointwiseSizes{p.rows * p.columns})) {
    SCOPED_TRACE(row);
    const PointwisePlan plan(p.d, {p.rows * p.columns}, Device::cpu(), {.force = row});
    if (p.has_a && !repeated && p.a.view.dtype == p.d.dtype) {
      const auto saved = gathered(p.a.view);
      plan.run(run_of(p, p.a.view));
      EXPECT_EQ("", test::compare(gathered(p.a.view), p.exact, p.bound)) << "y is a";
      scattered(p.a.view, saved);
    }
    if (p.has_b) {
      const auto saved = gathered(p.b.view);
      plan.run(run_of(p, p.b.view));
      EXPECT_EQ("", test::compare(gathered(p.b.view), p.exact, p.bound)) << "y is b";
      scattered(p.b.view, saved);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, PointwiseCases, testing::ValuesIn(cases::tested("pointwise")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

TEST(Pointwise, SlopesOfTheReferenceAgreeWithDifferences) {
  // Central differences of a smooth function in f64: error h^2 / 6 |f'''| + 2^-53 |f| / h, with h = 1e-5 below 1e-9 here.
  constexpr double h = 1e-5;
  HostTensor z(DType::f64, {400}), one(DType::f64, {400}), slope(DType::f64, {400}), up(DType::f64, {400}), down(DType::f64, {400});
  z.uniform(3, -5, 5);
  one.fill(1);
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
    const PlanOptions options{.force = "reference.pointwise"};
    const PointwisePlan gradient({.operation = Pointwise::activation_gradient, .dtype = DType::f64, .activation = activation},
                                 {400}, Device::cpu(), options);
    const PointwisePlan value({.operation = Pointwise::activation, .dtype = DType::f64, .activation = activation}, {400},
                              Device::cpu(), options);
    gradient.run({.a = z, .b = one, .y = slope});
    HostTensor moved(DType::f64, {400});
    for (std::int64_t i = 0; i < 400; ++i) moved.put(i, z.at(i) + h);
    value.run({.a = moved, .y = up});
    for (std::int64_t i = 0; i < 400; ++i) moved.put(i, z.at(i) - h);
    value.run({.a = moved, .y = down});
    for (std::int64_t i = 0; i < 400; ++i) EXPECT_NEAR(slope.at(i), (up.at(i) - down.at(i)) / (2 * h), 1e-8) << z.at(i);
  }
}

TEST(Pointwise, NanPassesThroughEveryActivation) {
  const double nan = std::nan("");
  for (const auto& row : kernels("pointwise", DeviceKind::cpu))
    for (const Activation activation :
         {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
      HostTensor a(DType::f32, {5}), y(DType::f32, {5});
      a.fill(nan);
      PointwisePlan({.operation = Pointwise::activation, .activation = activation}, {5}, Device::cpu(), {.force = row})
          .run({.a = a, .y = y});
      for (const double value : y.values()) EXPECT_TRUE(std::isnan(value)) << row << ' ' << static_cast<int>(activation);
    }
}

/// Far from 0 a slope is 0 on the left and 1 on the right, without infinity times 0 on the way.
TEST(Pointwise, SlopesOfLargeInputsEndInTheirLimits_sanitize) {
  const std::vector<double> inputs{-3e38, -1e20, -1e10, 1e10, 1e20, 3e38};
  HostTensor a(DType::f32, {6}), b(DType::f32, {6}), y(DType::f32, {6});
  a.set(inputs), b.fill(2);
  for (const auto& row : kernels("pointwise", DeviceKind::cpu))
    for (const Activation activation : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
      PointwisePlan({.operation = Pointwise::activation_gradient, .activation = activation}, {6}, Device::cpu(), {.force = row})
          .run({.a = a, .b = b, .y = y});
      for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.at(i), i < 3 ? 0 : 2) << row << ' ' << static_cast<int>(activation);
    }
}

TEST(Pointwise, RankSixViewsKeepTheLogicalOrder_sanitize) {
  HostTensor a(DType::f32, {2, 3, 1, 4, 2, 5}), y(DType::f32, {4, 3, 1, 2, 2, 5});
  a.integers(4, -9, 9);
  const auto moved = a.view().transposed(0, 3);
  for (const auto& row : kernels("pointwise", DeviceKind::cpu)) {
    y.poison();
    PointwisePlan({}, {240}, Device::cpu(), {.force = row}).run({.a = moved, .y = y});
    EXPECT_EQ(y.values(), gathered(moved)) << row;
  }
}

TEST(Pointwise, ErrorsNameTheArgument) {
  HostTensor a(DType::f32, {4, 8}), b(DType::f32, {4, 7}), y(DType::f32, {4, 8});
  const PointwisePlan add({.operation = Pointwise::add}, {32});
  EXPECT_EQ(test::error_of([&] { add.run({.a = a, .b = b, .y = y}); }),
            "[pointwise.run] b: expected [4, 8] f32 cpu, got [4, 7] f32 cpu");
  EXPECT_EQ(test::error_of([&] { add.run({.a = a, .b = {}, .y = y}); }),
            "[pointwise.run] b: expected [4, 8] f32 cpu, got not given");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({}, {32}).run({.a = a, .b = a, .y = y}); }),
            "[pointwise.run] b: expected none for this operation, got [4, 8] f32 cpu");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({}, {31}).run({.a = a, .y = y}); }),
            "[pointwise.run] y: expected at most 31 elements, got [4, 8] f32 cpu");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({}, {32}).run({.a = a.view().narrow(0, 0, 3), .y = a.view().narrow(0, 1, 3)}); }),
            "[pointwise.run] y: expected memory apart from a, got an overlap");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({}, {32}).run({.a = a, .y = y, .dropout_seed = 3}); }),
            "[pointwise.run] dropout_seed, dropout_offset: expected 0 for an operation that drops nothing, got 3 and 0");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({.operation = Pointwise::dropout, .dropout = 1.5F}, {1}); }),
            "[pointwise.plan] dropout: expected 0 ... 1, got 1.5");
  EXPECT_EQ(test::error_of([&] { PointwisePlan({.operation = Pointwise::add, .factor = 2}, {1}); }),
            "[pointwise.plan] factor: expected 1 for an operation other than scale and fill, got 2");
}

}  // namespace
}  // namespace everglow
