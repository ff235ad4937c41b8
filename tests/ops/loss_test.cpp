// Classifier loss beside its cases: gradients by finite differences, whole numbers exactly, what is not asked for, padding,
// overlaps and errors.
#include "ops/small_layers.hpp"

#include <everglow/loss.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace everglow {
namespace {

using test::HostTensor;

/// Tensors of one problem of a dtype, and the call that fills its results.
struct Fixture {
  LossDescription d;
  std::int64_t rows;
  HostTensor x, weight, bias, targets, loss, count, dx, dweight, dbias;

  Fixture(const LossDescription& description, std::int64_t n)
      : d(description),
        rows(n),
        x(d.dtype, {n, d.inputs}),
        weight(d.dtype, {d.classes, d.inputs}),
        bias(d.dtype, {d.classes}),
        targets(DType::i32, {n}),
        loss(d.dtype == DType::f64 ? DType::f64 : DType::f32, {1}),
        count(DType::f32, {1}),
        dx(d.dtype, {n, d.inputs}),
        dweight(d.dtype, {d.classes, d.inputs}),
        dbias(d.dtype, {d.classes}) {
    x.uniform(1, -1, 1);
    weight.uniform(2, -1, 1);
    bias.uniform(3, -1, 1);
    targets.integers(4, 0, static_cast<int>(d.classes) - 1);
  }
  LossForward inputs() const { return {.x = x, .weight = weight, .bias = bias, .targets = targets, .loss = loss, .count = count}; }
  LossBackward all() const { return {.forward = inputs(), .divide_by_count = false, .dx = dx, .dweight = dweight, .dbias = dbias}; }
};

void run(const LossPlan& plan, const LossBackward& tensors) {
  const test::Scratch scratch(plan.workspace_bytes());
  plan.forward_backward(tensors, {scratch.data(), scratch.bytes()});
  EXPECT_TRUE(scratch.guards_intact());
}

TEST(Loss, GradientsOfTheReferenceAgreeWithDifferences) {
  // Central differences with h = 1e-5: the third derivative of a loss row along one logit is below 1, so the method errs by at most
  // 5 h^2 = 5e-10 here, and f64 roundoff of a sum near 20 over h by 20 · 2^-53 / h, about 2e-10.
  constexpr double h = 1e-5;
  Fixture f({.inputs = 4, .classes = 6, .dtype = DType::f64, .smoothing = 0.15F, .ignore_index = 2, .training = true}, 8);
  f.targets.set({0, 2, 5, 1, 2, 3, 4, 5});
  const LossPlan plan(f.d, {f.rows}, Device::cpu(), {.force = "reference.loss"});
  run(plan, f.all());
  EXPECT_EQ(f.count.at(0), 6);
  const test::Scratch scratch(plan.workspace_bytes());
  const auto value = [&] {
    plan.forward(f.inputs(), {scratch.data(), scratch.bytes()});
    return f.loss.at(0);
  };
  const auto check = [&](HostTensor& input, const HostTensor& gradient) {
    for (std::int64_t i = 0; i < input.view().elements(); ++i) {
      const double before = input.at(i);
      input.put(i, before + h);
      const double up = value();
      input.put(i, before - h);
      const double down = value();
      input.put(i, before);
      EXPECT_NEAR((up - down) / (2 * h), gradient.at(i), 2e-9) << i;
    }
  };
  check(f.x, f.dx);
  check(f.weight, f.dweight);
  check(f.bias, f.dbias);
}

TEST(Loss, LossOfARowIsTheFormula) {
  // Two classes, logits 0 and 1: lse = ln(1 + e), mean 1/2; smoothing 0.2 and target 1.
  Fixture f({.inputs = 1, .classes = 2, .dtype = DType::f64, .smoothing = 0.25F, .training = true}, 1);
  f.x.fill(1);
  f.weight.set({0, 1});
  f.bias.fill(0);
  f.targets.fill(1);
  run(LossPlan(f.d, {1}), f.all());
  const double lse = std::log(1 + std::exp(1.0)), p = std::exp(1.0) / (1 + std::exp(1.0));
  EXPECT_NEAR(f.loss.at(0), 0.75 * (lse - 1) + 0.25 * (lse - 0.5), 1e-15);
  EXPECT_NEAR(f.dbias.at(1), p - 0.75 - 0.125, 1e-15);
  EXPECT_NEAR(f.dbias.at(0), 1 - p - 0.125, 1e-15);
  EXPECT_NEAR(f.dx.at(0), p - 0.875, 1e-15);
}

/// A row alone has the bits of dx that it has among others, in whatever block of rows it is.
TEST(Loss, RowsDoNotDependOnTheRest) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture f({.inputs = 33, .classes = 1001, .dtype = dtype, .smoothing = 0.1F, .ignore_index = 7, .training = true}, 300);
    const LossPlan plan(f.d, {300}, Device::cpu(), {.threads = 3, .force = "cpu.loss", .deterministic = true});
    run(plan, f.all());
    for (const std::int64_t row : {0, 1, 150, 299}) {
      const HostTensor alone(dtype, {1, 33});
      LossBackward b = f.all();
      b.forward.x = f.x.view().narrow(0, row, 1), b.forward.targets = f.targets.view().narrow(0, row, 1);
      b.dx = alone, b.dweight = {}, b.dbias = {};
      run(plan, b);
      EXPECT_EQ(alone.values(), test::gathered(f.dx.view().narrow(0, row, 1))) << row << ' ' << name(dtype);
    }
  }
}

TEST(Loss, WholeNumbersAreExact_sanitize) {
  // Neighbours in x cancel and neighbours in W agree, so that every logit is 0 and every probability 1/64: all gradients are
  // multiples of 1/64 below 2^24 / 64, and no order of the sums rounds.
  for (const auto& row : kernels("loss", DeviceKind::cpu))
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(row);
      Fixture f({.inputs = 6, .classes = 64, .training = true}, 300);
      f.bias.fill(0);
      for (std::int64_t n = 0; n < 300; ++n)
        for (std::int64_t i = 0; i < 6; ++i)
          f.x.put(n * 6 + i, static_cast<double>((n * 7 + i / 2 * 5) % 9) * (i % 2 == 0 ? 1 : -1));
      for (std::int64_t c = 0; c < 64; ++c)
        for (std::int64_t i = 0; i < 6; ++i) f.weight.put(c * 6 + i, static_cast<double>((c * 5 + i / 2 * 3) % 13));
      run(LossPlan(f.d, {300}, Device::cpu(), {.force = row, .deterministic = deterministic}), f.all());
      std::vector<double> dx(300 * 6, 0), dweight(64 * 6, 0), dbias(64, 0);
      for (std::int64_t n = 0; n < 300; ++n)
        for (std::int64_t c = 0; c < 64; ++c) {
          const double g = 1.0 / 64 - (f.targets.at(n) == static_cast<double>(c) ? 1 : 0);
          dbias[static_cast<std::size_t>(c)] += g;
          for (std::int64_t i = 0; i < 6; ++i) {
            dx[static_cast<std::size_t>(n * 6 + i)] += g * f.weight.at(c * 6 + i);
            dweight[static_cast<std::size_t>(c * 6 + i)] += g * f.x.at(n * 6 + i);
          }
        }
      EXPECT_EQ("", test::compare(f.dx.values(), dx, 0));
      EXPECT_EQ("", test::compare(f.dweight.values(), dweight, 0));
      EXPECT_EQ("", test::compare(f.dbias.values(), dbias, 0));
    }
}

TEST(Loss, GradientsThatAreNotGivenAreNotComputed) {
  for (const auto& row : kernels("loss", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Fixture f({.inputs = 20, .classes = 30, .smoothing = 0.1F, .training = true}, 50);
    const LossPlan plan(f.d, {50}, Device::cpu(), {.force = row, .deterministic = true});
    run(plan, f.all());
    const auto expected_dx = f.dx.values(), expected_dweight = f.dweight.values(), expected_dbias = f.dbias.values();
    for (int given = 0; given < 8; ++given) {
      for (auto* tensor : {&f.dx, &f.dweight, &f.dbias}) tensor->poison();
      LossBackward t = f.all();
      if ((given & 1) == 0) t.dx = {};
      if ((given & 2) == 0) t.dweight = {};
      if ((given & 4) == 0) t.dbias = {};
      run(plan, t);
      EXPECT_EQ(f.dx.values() == expected_dx, (given & 1) != 0);
      EXPECT_EQ(f.dweight.values() == expected_dweight, (given & 2) != 0);
      EXPECT_EQ(f.dbias.values() == expected_dbias, (given & 4) != 0);
    }
  }
}

TEST(Loss, IgnoredRowsMayHoldNan_sanitize) {
  for (const auto& row : kernels("loss", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Fixture f({.inputs = 5, .classes = 9, .ignore_index = -1, .training = true}, 11);
    for (const std::int64_t n : {0, 4, 5, 10}) {
      f.targets.put(n, -1);
      for (std::int64_t i = 0; i < 5; ++i) f.x.put(n * 5 + i, std::nan(""));
    }
    run(LossPlan(f.d, {11}, Device::cpu(), {.force = row}), f.all());
    for (const auto* tensor : {&f.loss, &f.dx, &f.dweight, &f.dbias})
      for (const double value : tensor->values()) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(f.count.at(0), 7);
  }
}

TEST(Loss, LargeLogitsStayFinite) {
  for (const auto& row : kernels("loss", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Fixture f({.inputs = 1, .classes = 3, .training = true}, 2);
    f.x.fill(1);
    f.weight.set({3000, -3000, 0});
    f.bias.fill(0);
    f.targets.set({0, 1});
    run(LossPlan(f.d, {2}, Device::cpu(), {.force = row}), f.all());
    EXPECT_EQ(f.loss.at(0), 6000);  // 0 for the first row, 6000 for the second
    EXPECT_EQ(f.dbias.values(), (std::vector<double>{1, -1, 0}));
  }
}

TEST(Loss, LeadingDimensionsFoldAndTargetsMayBeStrided) {
  for (const auto& row : kernels("loss", DeviceKind::cpu)) {
    Fixture f({.inputs = 6, .classes = 7, .training = true}, 12);
    const LossPlan plan(f.d, {12}, Device::cpu(), {.force = row, .deterministic = true});
    run(plan, f.all());
    const auto loss = f.loss.values(), dx = f.dx.values();
    HostTensor pairs(DType::i64, {12, 2});
    for (std::int64_t n = 0; n < 12; ++n) pairs.put(2 * n, f.targets.at(n));
    LossBackward t = f.all();
    t.forward.x = f.x.view().split(0, 3, 4);
    t.dx = f.dx.view().split(0, 3, 4);
    TensorView first = pairs.view().narrow(1, 0, 1);
    first.rank = 1;
    t.forward.targets = first;
    run(plan, t);
    EXPECT_EQ(f.loss.values(), loss) << row;
    EXPECT_EQ(f.dx.values(), dx) << row;
  }
}

TEST(Loss, ExplainsItsProducts) {
  const LossPlan plan({.inputs = 3, .classes = 5, .training = true}, {7});
  const auto& gemms = plan.explain().gemms;
  ASSERT_EQ(gemms.size(), 3U);
  EXPECT_EQ(gemms[0].m, 5);
  EXPECT_EQ(gemms[0].n, 7);
  EXPECT_EQ(gemms[0].k, 3);
  EXPECT_EQ(plan.explain().kernel, "cpu.loss");
  const LossPlan wide({.inputs = 3, .classes = 5, .dtype = DType::f64}, {7});
  EXPECT_EQ(wide.explain().rows[0].reason, "f64 is served by the reference alone");
}

TEST(Loss, WorkspaceDoesNotHoldTheLogits) {
  constexpr std::int64_t rows = 20000, classes = 8000;
  const LossPlan plan({.inputs = 256, .classes = classes, .training = true}, {rows});
  EXPECT_LT(plan.workspace_bytes(), static_cast<std::size_t>(rows * classes) * sizeof(float) / 40);
}

/// A class that cannot be chosen has the logit -inf. Without smoothing it takes nothing: the loss is that of the other classes.
TEST(Loss, ALogitOfMinusInfinityTakesNothing_sanitize) {
  constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  for (const auto& row : kernels("loss", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Fixture f({.inputs = 3, .classes = 5, .training = true}, 4);
    f.bias.put(4, minus_infinity);
    f.targets.set({0, 3, 2, 1});
    run(LossPlan(f.d, {4}, Device::cpu(), {.force = row}), f.all());
    Fixture four({.inputs = 3, .classes = 4, .training = true}, 4);
    four.x = f.x, four.targets = f.targets;
    std::vector<double> weight = f.weight.values(), bias = f.bias.values();
    weight.resize(12), bias.resize(4);
    four.weight.set(weight), four.bias.set(bias);
    run(LossPlan(four.d, {4}, Device::cpu(), {.force = row}), four.all());
    // Each of 4 rows of at most 5: 8 roundings of logits, exponentials and sums, in f32.
    EXPECT_NEAR(f.loss.at(0), four.loss.at(0), 4 * 5 * 8 * 0x1p-24);
    EXPECT_EQ(f.dbias.at(4), 0);
    f.targets.fill(4);
    run(LossPlan(f.d, {4}, Device::cpu(), {.force = row}), f.all());
    EXPECT_EQ(f.loss.at(0), -minus_infinity) << "the class that cannot be chosen is the target";
    f.targets.fill(1);
    f.d.smoothing = 1;
    run(LossPlan(f.d, {4}, Device::cpu(), {.force = row}), f.all());
    EXPECT_EQ(f.loss.at(0), -minus_infinity) << "all of the share is spread over all classes";
    f.targets.fill(4);
    run(LossPlan(f.d, {4}, Device::cpu(), {.force = row}), f.all());
    EXPECT_EQ(f.loss.at(0), -minus_infinity) << "and none is the target's";
  }
}

TEST(Loss, ErrorsNameTheArgument_sanitize) {
  Fixture f({.inputs = 3, .classes = 5, .ignore_index = -1, .training = true}, 4);
  const LossPlan plan(f.d, {4});
  const test::Scratch scratch(plan.workspace_bytes());
  const auto error = [&](const LossBackward& t) {
    return test::error_of([&] { plan.forward_backward(t, {scratch.data(), scratch.bytes()}); });
  };
  f.targets.set({0, -1, 5, 1});
  EXPECT_EQ(error(f.all()), "[loss.forward_backward] targets: expected 0 ... 4 or -1, got 5 in row 2");
  f.targets.set({0, -1, 2, -2});
  EXPECT_EQ(test::error_of([&] {
              plan.forward(f.inputs(), {scratch.data(), scratch.bytes()});
            }),
            "[loss.forward] targets: expected 0 ... 4 or -1, got -2 in row 3");
  f.targets.fill(1);
  LossBackward t = f.all();
  t.forward.targets = f.x;
  EXPECT_EQ(error(t), "[loss.forward_backward] targets: expected i32 or i64, got [4, 3] f32 cpu");
  t = f.all();
  t.forward.targets = f.targets.view().narrow(0, 0, 3);
  EXPECT_EQ(error(t), "[loss.forward_backward] targets: expected one for each of the 4 rows of x, got 3");
  t = f.all();
  t.dx = f.x;
  EXPECT_EQ(error(t), "[loss.forward_backward] dx: expected memory apart from x, got an overlap");
  t = f.all();
  t.dweight = f.weight;
  EXPECT_EQ(error(t), "[loss.forward_backward] dweight: expected memory apart from weight, got an overlap");
  t = f.all();
  t.forward.weight = f.weight.view().transposed(0, 1);
  EXPECT_EQ(error(t), "[loss.forward_backward] weight: expected [5, 3] f32 cpu, got [3, 5] f32 cpu");
  t = f.all();
  t.forward.weight.strides[0] = 0;
  EXPECT_EQ(error(t), "[loss.forward_backward] weight: expected rows at least 3 elements apart, got stride 0");
  EXPECT_EQ(test::error_of([&] { plan.forward_backward(f.all(), {}); }),
            "[loss.forward_backward] workspace: expected at least " + std::to_string(plan.workspace_bytes()) + " bytes, got 0");
  EXPECT_EQ(test::error_of([&] {
              LossPlan({.inputs = 3, .classes = 5}, {4}).forward_backward(f.all(), {scratch.data(), scratch.bytes()});
            }),
            "[loss.forward_backward] training: expected a plan that was made with training, got one without");
  EXPECT_EQ(test::error_of([] { LossPlan({.inputs = 3, .classes = 5, .smoothing = 1.5F}, {4}); }),
            "[loss.plan] smoothing: expected 0 ... 1, got 1.5");
  EXPECT_EQ(test::error_of([] { LossPlan({.inputs = 3, .classes = -5}, {4}); }), "[loss.plan] classes: expected 0 or more, got -5");
}

}  // namespace
}  // namespace everglow
