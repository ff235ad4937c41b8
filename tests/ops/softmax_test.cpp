// Softmax: every case, every accepting row, forward and backward, against the reference in f64.
#include "cases/case.hpp"
#include "support/tensor.hpp"

#include <everglow/softmax.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace everglow {
namespace {

using cases::Case;
using test::HostTensor;

SoftmaxDescription description_of(const Case& c) {
  return {.dtype = parse_dtype(c.text("dtype", "f32")),
          .log = c.flag("log"),
          .masked_row = c.text("masked_row", "nan") == "zero" ? MaskedRow::zero : MaskedRow::nan};
}

class SoftmaxCases : public testing::TestWithParam<Case> {};

/// |y| <= 1 is a quotient of exponentials of sums of n terms: with roundoff u of f32 arithmetic and u_s of the storage type the
/// error is at most (4 + n) u |y| of the sum and the exponential (whose argument is exact to u |x - max|), plus one rounding.
std::vector<double> forward_bound(const std::vector<double>& y, const SoftmaxDescription& d, std::int64_t columns, double range) {
  const double u = test::unit_roundoff(DType::f32), storage = test::unit_roundoff(d.dtype);
  std::vector<double> bound;
  for (const double value : y) {
    const double scale = d.log ? 1 + std::fabs(value) : std::fabs(value);
    bound.push_back((std::isfinite(scale) ? scale : 0) * ((4 + static_cast<double>(columns) + range) * u + storage) + 1e-37);
  }
  return bound;
}

TEST_P(SoftmaxCases, EveryRowAgreesWithTheReference) {
  const Case& c = GetParam();
  const SoftmaxDescription d = description_of(c);
  const SoftmaxSizes sizes{c.integer("rows", 1), c.integer("columns", 1)};
  const std::vector<std::int64_t> shape{sizes.rows, sizes.columns};
  HostTensor x(d.dtype, shape, sizes.columns + 3), dy(d.dtype, shape);
  x.uniform(1, -4, 4);
  dy.uniform(2, -1, 1);
  if (d.masked_row == MaskedRow::zero)
    for (std::int64_t i = 0; i < sizes.columns; ++i) x.put(i, -std::numeric_limits<double>::infinity());
  SoftmaxDescription exact = d;
  exact.dtype = DType::f64;
  HostTensor x64(DType::f64, shape), y64(DType::f64, shape), dy64(DType::f64, shape), dx64(DType::f64, shape);
  x64.set(x.values());
  dy64.set(dy.values());
  const SoftmaxPlan reference(exact, sizes, Device::cpu(), {.force = "reference.softmax"});
  reference.forward({x64, y64}, {});
  reference.backward({y64, dy64, dx64}, {});

  for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    const SoftmaxPlan plan(d, sizes, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    HostTensor y(d.dtype, shape, sizes.columns + 1), dx(d.dtype, shape);
    plan.forward({x, y}, {scratch.data(), scratch.bytes()});
    EXPECT_EQ("", test::compare(y.values(), y64.values(), forward_bound(y64.values(), d, sizes.columns, 8)));
    plan.backward({y, dy, dx}, {scratch.data(), scratch.bytes()});
    // y carries the error above into y (dy - sum y dy); the sum has |terms| <= 1.
    const double u = test::unit_roundoff(DType::f32), storage = test::unit_roundoff(d.dtype);
    const double reach = d.log ? 1 + static_cast<double>(sizes.columns) : 2;
    EXPECT_EQ("", test::compare(dx.values(), dx64.values(), reach * (3 * (static_cast<double>(sizes.columns) + 12) * u + 3 * storage)));
    EXPECT_TRUE(y.guards_intact() && dx.guards_intact() && scratch.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, SoftmaxCases, testing::ValuesIn(cases::all("softmax")),
                         [](const auto& info) { return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : ""); });

TEST(Softmax, WrongShapeNamesArgumentExpectedAndActual) {
  const SoftmaxPlan plan({}, {4, 8});
  HostTensor x(DType::f32, {4, 7}), y(DType::f32, {4, 8});
  try {
    plan.forward({x, y}, {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "[softmax.forward] x: expected [any, 8] f32 cpu, got [4, 7] f32 cpu");
  }
}

}  // namespace
}  // namespace everglow
