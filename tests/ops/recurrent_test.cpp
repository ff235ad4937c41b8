// Recurrent layers: every case, every accepting row, forward and backward, packed or not, against the reference in f64; and what a
// row promises beside numbers: the same bits, one step after the other, padding that is never read.
#include "ops/recurrent_plain.hpp"
#include "ops/recurrent_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

using cases::Case;
using test::HostTensor;
using test::RecurrentProblem;
using test::RecurrentResult;

double largest(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::fabs(value));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    out = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(out, difference);
  }
  return out;
}

/// A bound from roundoff alone means nothing for a recurrence, which can amplify or forget errors. So a row may err, at worst over
/// a tensor, twice as much as the plain implementation does. Beside that, 4 units of the largest factor that enters (gates, states
/// and incoming gradients, all at most 1 here) or value: a gate is right to a few units of 1, whatever its product with others is,
/// and a tensor of few elements may have been met exactly by plain.
void expect_close(const RecurrentProblem& p, const RecurrentResult& actual, const RecurrentResult& plain,
                  const RecurrentResult& exact) {
  const auto a = actual.outputs(), b = plain.outputs(), c = exact.outputs();
  ASSERT_EQ(a.size(), c.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto expected = c[i].second.values();
    const double allowed = 2 * largest_difference(b[i].second.values(), expected);
    const double unit = std::max(test::unit_roundoff(DType::f32), test::unit_roundoff(p.description.dtype));
    EXPECT_EQ("", test::compare(a[i].second.values(), expected, allowed + 4 * unit * std::max(1.0, largest(expected))))
        << a[i].first;
  }
}

/// y and dx are zero past each length.
void expect_zero_padding(const RecurrentProblem& p, const HostTensor& tensor) {
  const std::int64_t width = tensor.const_view().size(2);
  for (std::int64_t b = 0; b < p.sizes.batch; ++b)
    for (std::int64_t t = p.length(b); t < p.sizes.steps; ++t)
      for (std::int64_t i = 0; i < width; ++i)
        ASSERT_EQ(0.0, tensor.at((t * p.sizes.batch + b) * width + i)) << "row " << b << " step " << t;
}

class RecurrentCases : public testing::TestWithParam<Case> {};

TEST_P(RecurrentCases, EveryRowAgreesWithTheReference) {
  const RecurrentProblem p(GetParam());
  const RecurrentResult exact = test::run(p.as(DType::f64), {.force = "reference.recurrent"});
  const RecurrentResult plain = test::plain_recurrent(p);
  for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
    if (!test::accepts(row, p)) continue;
    for (const bool packed : {false, true})
      for (const bool deterministic : {false, true}) {
        SCOPED_TRACE(row + (packed ? " packed" : "") + (deterministic ? " deterministic" : ""));
        const RecurrentResult r = test::run(p, {.threads = 2, .force = row, .deterministic = deterministic}, {.packed = packed});
        expect_close(p, r, plain, exact);
        expect_zero_padding(p, r.y);
        if (p.description.training) expect_zero_padding(p, r.dx);
        EXPECT_TRUE(r.guards);
        if (row == "reference.recurrent") break;
      }
  }
}

TEST_P(RecurrentCases, ThreadsDoNotChangeBits) {
  const RecurrentProblem p(GetParam());
  if (!test::accepts("cpu.recurrent_stepwise", p)) return;
  const PlanOptions one{.threads = 1, .force = "cpu.recurrent_stepwise", .deterministic = true};
  const auto expected = test::run(p, one).outputs();
  for (const int threads : {2, 3, 5}) {
    PlanOptions options = one;
    options.threads = threads;
    const auto actual = test::run(p, options, {.packed = threads == 3}).outputs();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(actual[i].second.values(), expected[i].second.values()) << expected[i].first << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, RecurrentCases, testing::ValuesIn(cases::tested("recurrent")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

}  // namespace
}  // namespace everglow
