// The LSTM against what PyTorch computed in f64: the reference in f64, and every row that takes f32. Padding is NaN.
#include "cases/proof/recurrent_plain.hpp"
#include "ops/small_layers.hpp"
#include "ops/torch_vectors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow {
namespace {

using proof::RecurrentProblem;
using proof::RecurrentResult;
using test::TorchCase;
using Values = std::vector<double>;

RecurrentProblem lstm_problem(const TorchCase& c) {
  const std::string sizes = "steps=" + std::to_string(c.size("x", 0)) + " batch=" + std::to_string(c.size("x", 1)) +
                            " inputs=" + std::to_string(c.size("x", 2)) + " hidden=" + std::to_string(c.size("h0", 2));
  const bool both = c.number("directions") == 2, with_lengths = c.name.starts_with("lstm lengths");
  RecurrentProblem p(cases::parse("recurrent " + sizes + (both ? " bidirectional=1" : "") + (with_lengths ? " lengths=full" : "")));
  p.x.set(c.values("x")), p.dy.set(c.values("dy"));
  p.h0.set(c.values("h0")), p.c0.set(c.values("c0")), p.dhn.set(c.values("dhn")), p.dcn.set(c.values("dcn"));
  if (with_lengths) p.lengths.set(c.values("lengths"));
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const std::string part = '.' + std::to_string(i);
    p.weights[i].w_ih.set(c.values("w_ih" + part)), p.weights[i].w_hh.set(c.values("w_hh" + part));
    p.weights[i].b_ih.set(c.values("b_ih" + part)), p.weights[i].b_hh.set(c.values("b_hh" + part));
  }
  return p;
}

/// PyTorch's values of an output; a gradient of weights is named after them here.
const Values& expected_of(const TorchCase& c, const std::string& output) {
  return c.values(output.starts_with("w_") || output.starts_with("b_") ? 'd' + output : output);
}

double largest(const Values& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::fabs(value));
  return out;
}

/// The plain layer whose error is the measure.
template <class Problem>
RecurrentResult plain_of(const Problem& p) {
  if constexpr (requires { plain_recurrent(p); })
    return plain_recurrent(p);
  else
    return plain_lstm(p);
}

/// The bound of recurrent_test.cpp: twice the error of a plain f32 LSTM at worst over a tensor, and 4 units of the largest factor.
/// In f64 roundings are 2^-29 as large, and PyTorch makes as many.
void expect_lstm(const TorchCase& c, const RecurrentResult& plain, const RecurrentResult& actual, double share) {
  const auto outputs = actual.outputs(), measures = plain.outputs();
  ASSERT_EQ(outputs.size(), measures.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Values &expected = expected_of(c, outputs[i].first), measure = measures[i].second.values();
    double error = 0;
    for (std::size_t e = 0; e < expected.size(); ++e) error = std::max(error, std::fabs(measure[e] - expected[e]));
    EXPECT_LT(error, 1e-4) << "plain differs from PyTorch in " << outputs[i].first;
    const double allowed = 2 * error + 4 * test::unit_roundoff(DType::f32) * std::max(1.0, largest(expected));
    EXPECT_EQ("", test::compare(outputs[i].second.values(), expected, share * allowed)) << outputs[i].first;
  }
}

TEST(Torch, Lstm_sanitize) {
  for (const TorchCase& c : test::torch_cases("lstm")) {
    SCOPED_TRACE(c.name);
    const RecurrentProblem p = lstm_problem(c);
    const RecurrentResult plain = plain_of(p);
    expect_lstm(c, plain, proof::run_recurrent(p.as(DType::f64), {.force = "reference.recurrent"}), 0x1p-28);
    for (const auto& row : test::accepting_rows<RecurrentPlan>("recurrent", p.description, p.sizes))
      for (const bool packed : {false, true}) {
        SCOPED_TRACE(row + (packed ? " packed" : ""));
        const RecurrentResult r = proof::run_recurrent(p, {.force = row}, {.packed = packed});
        expect_lstm(c, plain, r, 1);
        EXPECT_TRUE(r.guards);
      }
  }
}

}  // namespace
}  // namespace everglow
