// Recurrent layers against what PyTorch and JAX computed in f64: the reference in f64, and every row in f32, f16 and bf16, which
// hold the inputs exactly. Padding is NaN.
#include "cases/proof/recurrent_plain.hpp"
#include "ops/stored_vectors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace everglow {
namespace {

using proof::RecurrentProblem;
using proof::RecurrentResult;
using test::StoredCase;
using Values = std::vector<double>;

/// Cases are named "recurrent CELL OPTION".
RecurrentProblem recurrent_problem(const StoredCase& c, DType dtype) {
  const auto whole = [&](const char* key) { return std::to_string(static_cast<std::int64_t>(c.number(key))); };
  const std::size_t begin = c.name.find(' ') + 1, outputs = static_cast<std::size_t>(c.size("hn", 2));
  std::string line = "recurrent cell=" + c.name.substr(begin, c.name.find(' ', begin) - begin) +
                     " steps=" + std::to_string(c.size("x", 0)) + " batch=" + std::to_string(c.size("x", 1)) +
                     " inputs=" + std::to_string(c.size("x", 2)) + " hidden=" + whole("hidden") + " layers=" + whole("layers") +
                     " dtype=" + std::string(name(dtype));
  if (c.number("directions") == 2) line += " bidirectional=1";
  if (static_cast<double>(outputs) != c.number("hidden")) line += " projection=" + std::to_string(outputs);
  if (c.has("lengths")) line += " lengths=full";
  if (c.has("resets")) line += " resets=1";
  if (!c.has("b_ih.0")) line += " bias=0";
  if (!c.has("h0")) line += " states=0";
  RecurrentProblem p(cases::parse(line));
  const auto set = [&](test::HostTensor& tensor, const std::string& key) {
    if (c.has(key)) tensor.set(c.values(key));
  };
  set(p.x, "x"), set(p.dy, "dy"), set(p.lengths, "lengths"), set(p.resets, "resets");
  set(p.h0, "h0"), set(p.c0, "c0"), set(p.dhn, "dhn"), set(p.dcn, "dcn");
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const std::string part = '.' + std::to_string(i);
    proof::HostWeights& w = p.weights[i];
    set(w.w_ih, "w_ih" + part), set(w.w_hh, "w_hh" + part), set(w.b_ih, "b_ih" + part), set(w.b_hh, "b_hh" + part);
    set(w.w_hr, "w_hr" + part);
  }
  return p;
}

double largest(const Values& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::fabs(value));
  return out;
}

/// The bound of cases/proof/recurrent.cpp: twice the error of a plain layer at worst over a tensor, and 4 units of the largest
/// factor. In f64 roundings are 2^-29 as large, and they make as many. Gradients of states that were not given are not
/// PyTorch's.
void expect_recurrent(const StoredCase& c, const RecurrentResult& plain, const RecurrentResult& actual, double unit, double share) {
  const auto outputs = actual.outputs(), measures = plain.outputs();
  ASSERT_EQ(outputs.size(), measures.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = outputs[i].first;
    const std::string key = name.find('.') != std::string::npos ? 'd' + name : name;  // of a weight
    if (!c.has(key)) continue;
    const Values &expected = c.values(key), measure = measures[i].second.values();
    double error = 0;
    for (std::size_t e = 0; e < expected.size(); ++e) error = std::max(error, std::fabs(measure[e] - expected[e]));
    EXPECT_LT(error, 64 * unit * std::max(1.0, largest(expected))) << "plain differs in " << name;
    const double allowed = 2 * error + 4 * unit * std::max(1.0, largest(expected));
    EXPECT_EQ("", test::compare(outputs[i].second.values(), expected, share * allowed)) << name;
  }
}

void expect_cases(const std::vector<StoredCase>& cases) {
  for (const StoredCase& c : cases)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(c.name + ' ' + std::string(name(dtype)));
      const RecurrentProblem p = recurrent_problem(c, dtype);
      const RecurrentResult plain = plain_recurrent(p);
      const double unit = test::unit_roundoff(dtype);
      if (dtype == DType::f32)
        expect_recurrent(c, plain, proof::run_recurrent(p.as(DType::f64), {.force = "reference.recurrent"}), unit, 0x1p-28);
      for (const auto& row : kernels("recurrent", DeviceKind::cpu))
        for (const bool packed : {false, true}) {
          if (!proof::accepts(row, p)) continue;
          SCOPED_TRACE(row + (packed ? " packed" : ""));
          const RecurrentResult r = proof::run_recurrent(p, {.force = row}, {.packed = packed});
          expect_recurrent(c, plain, r, unit, 1);
          EXPECT_TRUE(r.guards);
        }
    }
}

TEST(Torch, Recurrent_sanitize) { expect_cases(test::torch_cases("recurrent")); }
TEST(Jax, Recurrent_sanitize) { expect_cases(test::jax_cases("recurrent")); }

}  // namespace
}  // namespace everglow
