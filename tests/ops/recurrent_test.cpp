// The bits of every case on any number of threads; its numbers are proved by proof_test.cpp.
#include "cases/proof/recurrent_problem.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using cases::Case;
using proof::RecurrentProblem;

class RecurrentCases : public testing::TestWithParam<Case> {};

TEST_P(RecurrentCases, ThreadsDoNotChangeBits) {
  const RecurrentProblem p(GetParam());
  if (!proof::accepts("cpu.recurrent_stepwise", p)) return;
  const PlanOptions one{.threads = 1, .force = "cpu.recurrent_stepwise", .deterministic = true};
  const auto expected = proof::run_recurrent(p, one).outputs();
  for (const int threads : {2, 3, 5}) {
    PlanOptions options = one;
    options.threads = threads;
    const auto actual = proof::run_recurrent(p, options, {.packed = threads == 3}).outputs();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(actual[i].second.values(), expected[i].second.values()) << expected[i].first << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, RecurrentCases, testing::ValuesIn(cases::tested("recurrent")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

}  // namespace
}  // namespace everglow
