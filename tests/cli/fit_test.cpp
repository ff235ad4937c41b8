// Costs that are found from times of calls.
#include "cli/fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace everglow::cli {
namespace {

std::vector<Counted> calls_of(const std::vector<std::vector<double>>& counts, const std::vector<double>& costs) {
  std::vector<Counted> out;
  for (const auto& row : counts) {
    double us = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) us += row[i] * costs[i];
    out.push_back({row, us});
  }
  return out;
}

const std::vector<std::vector<double>> counts{{1, 0, 2}, {1, 5, 1}, {1, 900, 40}, {1, 30, 3000}, {1, 7, 7}};

TEST(FitCosts, FindsCostsThatExplainAllTimes) {
  const std::vector<double> costs{2, 0.01, 0.5}, found = fit_costs(calls_of(counts, costs));
  ASSERT_EQ(found.size(), 3U);
  // Times are explained to within the rule that ends the search: a last step of 1e-8 of a time.
  for (std::size_t i = 0; i < costs.size(); ++i) EXPECT_NEAR(found[i], costs[i], 1e-5 * costs[i]) << i;
}

TEST(FitCosts, NoCostIsNegative) {
  std::vector<Counted> calls = calls_of(counts, {2, 0.01, 0.5});
  calls[0].us /= 4;  // a call that is faster than its parts would have it
  for (const double cost : fit_costs(calls)) EXPECT_GE(cost, 0);
}

TEST(FitCosts, RelativeErrorsCount) {
  // One cost, two times that disagree: the least squares of relative errors, (c - 1)^2 + (c / 2 - 1)^2, are at 1.2.
  const std::vector<double> found = fit_costs({{{1}, 1}, {{1000}, 2000}});
  EXPECT_NEAR(found[0], 1.2, 1e-6);
}

TEST(FitCosts, OfNothingIsNothing) { EXPECT_TRUE(fit_costs({}).empty()); }

}  // namespace
}  // namespace everglow::cli
