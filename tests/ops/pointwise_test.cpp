// Elementwise operations beside their cases: slopes as differences, NaN, limits, any rank, errors.
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace everglow {
namespace {

using test::gathered;
using test::HostTensor;

TEST(Pointwise, SlopesOfTheReferenceAgreeWithDifferences) {
  // Central differences of a smooth function in f64: error h^2 / 6 |f'''| + 2^-53 |f| / h, with h = 1e-5 below 1e-9 here.
  constexpr double h = 1e-5;
  HostTensor z(DType::f64, {400}), one(DType::f64, {400}), slope(DType::f64, {400}), up(DType::f64, {400}), down(DType::f64, {400});
  z.uniform(3, -5, 5);
  one.fill(1);
  for (std::int64_t i = 0; i < 400; ++i)
    if (std::fabs(z.at(i)) < 2 * h) z.put(i, 1);  // relu has a corner at 0
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
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
