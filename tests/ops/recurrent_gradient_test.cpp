// Gradients of the recurrent reference by finite differences in f64: every input, both directions, any length.
#include "cases/proof/recurrent_problem.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace everglow {
namespace {

using proof::RecurrentProblem;
using test::HostTensor;

/// The loss whose gradient is asked for: the valid part of y against dy, and hn, cn against dhn, dcn.
double loss(const RecurrentProblem& p) {
  RecurrentProblem inference = p;
  inference.description.training = false;
  const proof::RecurrentResult r = proof::run_recurrent(inference, {.force = "reference.recurrent"});
  const std::int64_t width = r.y.const_view().size(2);
  double sum = 0;
  for (std::int64_t b = 0; b < p.sizes.batch; ++b)
    for (std::int64_t i = 0; i < p.length(b) * width; ++i) {
      const std::int64_t at = (i / width * p.sizes.batch + b) * width + i % width;
      sum += r.y.at(at) * p.dy.at(at);
    }
  for (const auto& [state, gradient] : {std::pair(r.hn, p.dhn), std::pair(r.cn, p.dcn)})
    for (std::int64_t i = 0; gradient.const_view().given() && i < gradient.const_view().elements(); ++i)
      sum += state.at(i) * gradient.at(i);
  return sum;
}

/// Central differences with step e = 1e-5: the truncation e²/6 |L'''| is below 1e-9 for |L'''| < 60, which holds here (weights and
/// inputs below 1, gates with derivatives below 1/4), and rounding is |L| 2^-53 · operations / e < 1e-8. A relu has a corner at 0:
/// no pre-activation of these cases (their numbers are fixed by the seed) lies within e of it.
constexpr double step = 1e-5, bound = 1e-7;

void expect_gradient(RecurrentProblem& p, HostTensor input, const HostTensor& gradient, const std::string& name) {
  const ConstTensorView view = input.const_view();
  if (!view.given()) return;
  std::vector<double> expected;
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    const double value = input.at(i);
    if (std::isnan(value)) {  // padding: no gradient flows
      expected.push_back(0);
      continue;
    }
    input.put(i, value + step);
    const double above = loss(p);
    input.put(i, value - step);
    expected.push_back((above - loss(p)) / (2 * step));
    input.put(i, value);
  }
  EXPECT_EQ("", test::compare(gradient.values(), expected, bound)) << name;
}

class RecurrentGradients : public testing::TestWithParam<const char*> {};

TEST_P(RecurrentGradients, ReferenceAgreesWithFiniteDifferences) {
  RecurrentProblem p(cases::parse(GetParam()));
  const proof::RecurrentResult r = proof::run_recurrent(p, {.force = "reference.recurrent"});
  EXPECT_TRUE(r.guards);
  expect_gradient(p, p.x, r.dx, "x");
  expect_gradient(p, p.h0, r.dh0, "h0");
  expect_gradient(p, p.c0, r.dc0, "c0");
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    expect_gradient(p, p.weights[i].w_ih, r.dweights[i].w_ih, "w_ih");
    expect_gradient(p, p.weights[i].w_hh, r.dweights[i].w_hh, "w_hh");
    expect_gradient(p, p.weights[i].b_ih, r.dweights[i].b_ih, "b_ih");
    expect_gradient(p, p.weights[i].b_hh, r.dweights[i].b_hh, "b_hh");
    expect_gradient(p, p.weights[i].w_hr, r.dweights[i].w_hr, "w_hr");
  }
}

/// Every cell with every other option, and each option once with all of the rest.
const char* const problems[] = {
    "recurrent dtype=f64 steps=4 batch=2 inputs=3 hidden=2",
    "recurrent dtype=f64 steps=3 batch=2 inputs=2 hidden=3 states=0 bias=0",
    "recurrent dtype=f64 steps=4 batch=4 inputs=2 hidden=3 bidirectional=1 lengths=random",
    "recurrent dtype=f64 steps=1 batch=1 inputs=1 hidden=1 bidirectional=1 lengths=full",
    "recurrent dtype=f64 steps=2 batch=2 inputs=2 hidden=2 lengths=zero",
    "recurrent dtype=f64 cell=gru steps=4 batch=2 inputs=3 hidden=2",
    "recurrent dtype=f64 cell=gru steps=3 batch=2 inputs=2 hidden=3 states=0 bias=0",
    "recurrent dtype=f64 cell=gru steps=5 batch=3 inputs=2 hidden=3 bidirectional=1 lengths=random resets=1",
    "recurrent dtype=f64 cell=gru steps=3 batch=3 inputs=2 hidden=2 layers=3 bidirectional=1 lengths=random dropout=0.4",
    "recurrent dtype=f64 cell=gru_reset_before steps=4 batch=2 inputs=3 hidden=3",
    "recurrent dtype=f64 cell=gru_reset_before steps=3 batch=2 inputs=2 hidden=3 states=0 bias=0",
    "recurrent dtype=f64 cell=gru_reset_before steps=5 batch=3 inputs=2 hidden=2 bidirectional=1 lengths=random resets=1",
    "recurrent dtype=f64 cell=gru_reset_before steps=3 batch=3 inputs=2 hidden=2 layers=2 bidirectional=1 lengths=random",
    "recurrent dtype=f64 cell=tanh steps=4 batch=2 inputs=3 hidden=2",
    "recurrent dtype=f64 cell=tanh steps=5 batch=3 inputs=2 hidden=3 bidirectional=1 lengths=random resets=1",
    "recurrent dtype=f64 cell=tanh steps=3 batch=3 inputs=2 hidden=2 layers=2 bidirectional=1 lengths=random dropout=0.3",
    "recurrent dtype=f64 cell=relu steps=4 batch=2 inputs=3 hidden=3",
    "recurrent dtype=f64 cell=relu steps=5 batch=3 inputs=2 hidden=3 bidirectional=1 lengths=random resets=1",
    "recurrent dtype=f64 cell=relu steps=3 batch=3 inputs=2 hidden=3 layers=2 bidirectional=1 lengths=random dropout=0.3",
    "recurrent dtype=f64 steps=5 batch=3 inputs=2 hidden=3 bidirectional=1 lengths=random resets=1",
    "recurrent dtype=f64 steps=5 batch=3 inputs=2 hidden=3 resets=1 states=0",
    "recurrent dtype=f64 steps=3 batch=3 inputs=3 hidden=2 layers=3 dropout=0.5",
    "recurrent dtype=f64 steps=4 batch=2 inputs=2 hidden=4 projection=3",
    "recurrent dtype=f64 steps=4 batch=3 inputs=2 hidden=2 projection=3 bidirectional=1 lengths=random",
    "recurrent dtype=f64 steps=4 batch=3 inputs=2 hidden=3 projection=2 layers=2 bidirectional=1 lengths=random resets=1 "
    "dropout=0.4",
};

INSTANTIATE_TEST_SUITE_P(Cpu, RecurrentGradients, testing::ValuesIn(problems),
                         [](const auto& info) { return std::to_string(info.index) + "_sanitize"; });

}  // namespace
}  // namespace everglow
