// Attention beside its proofs: the same bits for any strides, gradients as differences, exactness.
#include "cases/proof/attention_problem.hpp"
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

using cases::Case;
using proof::AttentionInputs;
using proof::AttentionResults;
using proof::Values;

constexpr const char* reference_row = "reference.attention";

std::vector<std::string> rows_for(const AttentionDescription& d, const AttentionSizes& s) {
  return test::accepting_rows<AttentionPlan>("attention", d, s);
}

void expect_within(const AttentionResults& came, const AttentionResults& exact, const AttentionResults& bound) {
  EXPECT_EQ("", test::compare(came.o, exact.o, bound.o)) << "o";
  EXPECT_EQ("", test::compare(came.lse, exact.lse, bound.lse)) << "lse";
  EXPECT_EQ("", test::compare(came.dq, exact.dq, bound.dq)) << "dq";
  EXPECT_EQ("", test::compare(came.dk, exact.dk, bound.dk)) << "dk";
  EXPECT_EQ("", test::compare(came.dv, exact.dv, bound.dv)) << "dv";
  EXPECT_EQ("", test::compare(came.dbias, exact.dbias, bound.dbias)) << "dbias";
}

void expect_same_bits(const AttentionResults& a, const AttentionResults& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
  EXPECT_EQ(a.dbias, b.dbias);
}

class AttentionCases : public testing::TestWithParam<Case> {};

TEST_P(AttentionCases, StridesDoNotChangeBits) {
  const Case& c = GetParam();
  SCOPED_TRACE(c.line);
  const AttentionDescription d = proof::attention_description(c);
  const AttentionSizes s = proof::attention_sizes(c);
  const AttentionInputs in = proof::attention_inputs(d, s, c);
  for (const auto& row : rows_for(d, s)) {
    SCOPED_TRACE(row);
    expect_same_bits(proof::run_attention(d, s, in, {.options = {.force = row}}),
                     proof::run_attention(d, s, in, {.options = {.force = row}, .steps_first = true}));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttentionCases, testing::ValuesIn(cases::tested("attention")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

/// Σ o d_o + Σ lse dlse of what the reference gives, without the padding (whose o is 0 and whose lse is -inf).
double loss(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in) {
  const AttentionResults r = proof::run_attention(d, s, in, {.options = {.force = reference_row}, .backward = false});
  double sum = 0;
  for (std::size_t i = 0; i < r.o.size(); ++i)
    if (r.o[i] != 0) sum += r.o[i] * in.d_o[i];
  for (std::size_t i = 0; i < r.lse.size(); ++i)
    if (std::isfinite(r.lse[i])) sum += r.lse[i] * in.dlse[i];
  return sum;
}

/// Central differences with h = 1e-4: h²/6 of a third derivative (below 100 for inputs in [-1, 1]), and 2^-53 |loss| / h, are
/// each below 1e-6.
void expect_differences(const Case& c) {
  SCOPED_TRACE(c.line);
  AttentionDescription d = proof::attention_description(c);
  const AttentionSizes s = proof::attention_sizes(c);
  AttentionInputs in = proof::attention_inputs(d, s, c);
  d.dtype = DType::f64;
  const AttentionResults gradients = proof::exact_attention(d, s, in);
  const auto check = [&](const char* name, Values& input, const Values& gradient) {
    ASSERT_EQ(input.size(), gradient.size());
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double kept = input[i], h = 1e-4;
      if (std::isnan(kept)) {
        EXPECT_EQ(gradient[i], 0) << name << " of padding at " << i;
        continue;
      }
      input[i] = kept + h;
      const double above = loss(d, s, in);
      input[i] = kept - h;
      const double below = loss(d, s, in);
      input[i] = kept;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 2e-6) << name << " at " << i;
    }
  };
  check("dq", in.q, gradients.dq);
  check("dk", in.k, gradients.dk);
  check("dv", in.v, gradients.dv);
  if (d.bias) check("dbias", in.bias, gradients.dbias);
}

TEST(Attention, GradientsOfTheReferenceAreDifferences_sanitize) {
  expect_differences(cases::parse("attention batch=2 queries=4 keys=5 heads=2 head_dim=3 value_dim=2 causal=1"));
  expect_differences(cases::parse("attention batch=2 queries=3 keys=4 heads=4 kv_heads=2 head_dim=2 lengths=1"));
  expect_differences(
      cases::parse("attention batch=2 queries=4 keys=4 heads=2 head_dim=2 softcap=1.5 alibi=1 bias=full window_left=1"));
  expect_differences(cases::parse("attention batch=2 queries=3 keys=3 heads=2 head_dim=2 bias=broadcast dropout=0.3 softcap=2"));
  expect_differences(cases::parse(
      "attention batch=1 queries=4 keys=5 heads=2 head_dim=2 scale=0.7 window_left=2 window_right=1 alignment=top_left"));
  expect_differences(cases::parse("attention batch=3 queries=3 keys=4 heads=2 head_dim=2 bias=heads alibi=rows packed=1 causal=1"));
  expect_differences(
      cases::parse("attention batch=2 queries=4 keys=3 heads=2 kv_heads=1 head_dim=2 bias=rows dropout=0.2 packed=1"));
}

/// With q = 0 every score is 0 and P = 1/n: for 8 keys of whole numbers o, dv and dq are exact in binary.
TEST(Attention, WholeNumbersAreExact_sanitize) {
  const Case c = cases::parse("attention batch=2 queries=7 keys=8 heads=2 head_dim=16 scale=1");
  AttentionDescription d = proof::attention_description(c);
  const AttentionSizes s = proof::attention_sizes(c);
  AttentionInputs in = proof::attention_inputs(d, s, c);
  std::fill(in.q.begin(), in.q.end(), 0.0);
  const auto whole = [](Values& values, int step) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<int>(i * 7 + i / 3) % (2 * step + 1) - step);
  };
  whole(in.k, 2), whole(in.v, 3), whole(in.d_o, 2), whole(in.dlse, 2);
  const AttentionResults exact = proof::exact_attention(d, s, in);
  for (const auto& row : rows_for(d, s)) {
    SCOPED_TRACE(row);
    const AttentionResults came = proof::run_attention(d, s, in, {.options = {.force = row}, .backward = false});
    EXPECT_EQ("", test::compare(came.o, exact.o, 0.0));
    EXPECT_NEAR(came.lse[0], std::log(8.0), 4 * 0x1p-24 * std::log(8.0));
  }
}

/// Without a head dimension every score is 0: LSE is the logarithm of the number of keys, o the mean of the values.
TEST(Attention, NoHeadDimensionAveragesTheValues_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16", "f64"})
    for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{20}}) {
      const Case c = cases::parse("attention batch=1 keys=8 heads=2 head_dim=0 value_dim=16 queries=" + std::to_string(queries) +
                                  " dtype=" + dtype);
      SCOPED_TRACE(c.line);
      const AttentionDescription d = proof::attention_description(c);
      const AttentionSizes s = proof::attention_sizes(c);
      AttentionInputs in = proof::attention_inputs(d, s, c);
      for (std::size_t i = 0; i < in.v.size(); ++i) in.v[i] = static_cast<double>(i / 32);  // the number of the key
      for (const auto& row : rows_for(d, s)) {
        const AttentionResults r = proof::run_attention(d, s, in, {.options = {.force = row}});
        for (const double value : r.o) EXPECT_EQ(value, 3.5) << row;
        for (const double value : r.lse) EXPECT_NEAR(value, std::log(8.0), 4 * 0x1p-24 * std::log(8.0)) << row;
        EXPECT_TRUE(r.dq.empty() && r.dk.empty()) << row;
      }
    }
}

TEST(Attention, RowsWithoutKeysAreZero_sanitize) {
  for (const char* line :
       {"attention batch=2 queries=5 keys=3 heads=2 head_dim=8 causal=1", "attention batch=2 queries=4 keys=0 heads=2 head_dim=8",
        "attention batch=2 queries=5 keys=6 heads=2 head_dim=8 lengths=1"}) {
    SCOPED_TRACE(line);
    const Case c = cases::parse(line);
    const AttentionDescription d = proof::attention_description(c);
    const AttentionSizes s = proof::attention_sizes(c);
    for (const auto& row : rows_for(d, s)) {
      const AttentionResults came = proof::run_attention(d, s, proof::attention_inputs(d, s, c), {.options = {.force = row}});
      // causal, bottom right: queries 0 and 1 stand before the first of 3 keys. lengths: batch row 1 has no key.
      const std::int64_t b = d.key_lengths ? 1 : 0;
      const auto query = static_cast<std::size_t>(b * s.queries * d.heads * d.head_dim);
      EXPECT_EQ(came.lse[static_cast<std::size_t>(b * d.heads * s.queries)], -std::numeric_limits<double>::infinity()) << row;
      for (std::size_t e = 0; e < 8; ++e) EXPECT_TRUE(came.o[query + e] == 0 && came.dq[query + e] == 0) << row;
      for (const Values* values : {&came.dk, &came.dv, &came.dq, &came.o})
        EXPECT_TRUE(std::none_of(values->begin(), values->end(), [](double x) { return std::isnan(x); })) << row;
    }
  }
}

/// Scores of a few thousand: an online softmax that forgets to subtract the maximum overflows.
TEST(Attention, LargeScoresStayFinite) {
  const Case c = cases::parse("attention batch=1 queries=20 keys=200 heads=1 head_dim=32 scale=200");
  const AttentionDescription d = proof::attention_description(c);
  const AttentionSizes s = proof::attention_sizes(c);
  const AttentionInputs in = proof::attention_inputs(d, s, c);
  const AttentionResults exact = proof::exact_attention(d, s, in), bound = proof::attention_bounds(d, s, in, exact);
  for (const auto& row : rows_for(d, s)) {
    SCOPED_TRACE(row);
    expect_within(proof::run_attention(d, s, in, {.options = {.force = row}}), exact, bound);
  }
}

/// Null gradients: an absent d_o or dlse is zero, an absent dq, dk or dv is not computed, and the others keep their bits.
TEST(Attention, GradientsThatAreNotAskedFor_sanitize) {
  const AttentionSizes s{.batch = 2, .queries = 9, .keys = 11};
  const AttentionDescription d{.heads = 2, .head_dim = 20, .training = true};
  const std::vector<std::int64_t> queries{2, 9, 2, 20}, keys{2, 11, 2, 20}, statistic{2, 2, 9};
  test::HostTensor q(DType::f32, queries), k(DType::f32, keys), v(DType::f32, keys), o(DType::f32, queries),
      lse(DType::f32, statistic);
  test::HostTensor d_o(DType::f32, queries), zero(DType::f32, queries), dlse(DType::f32, statistic);
  q.uniform(1, -1, 1), k.uniform(2, -1, 1), v.uniform(3, -1, 1), d_o.uniform(4, -1, 1), dlse.uniform(5, -1, 1), zero.fill(0);
  for (const auto& row : rows_for(d, s)) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, s, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    const Workspace workspace{scratch.data(), scratch.bytes()};
    plan.forward({.q = q, .k = k, .v = v, .o = o, .lse = lse}, workspace);
    const auto gradients = [&](const ConstTensorView& out, const ConstTensorView& lse_gradient, int wanted) {
      test::HostTensor dq(DType::f32, queries), dk(DType::f32, keys), dv(DType::f32, keys);
      AttentionBackward b{.q = q, .k = k, .v = v, .o = o, .lse = lse};
      b.d_o = out, b.dlse = lse_gradient;
      if (wanted & 1) b.dq = dq;
      if (wanted & 2) b.dk = dk;
      if (wanted & 4) b.dv = dv;
      plan.backward(b, workspace);
      return std::vector<Values>{dq.values(), dk.values(), dv.values()};
    };
    const auto all = gradients(d_o, dlse, 7);
    for (const int wanted : {1, 2, 4, 3, 5, 6}) {
      const auto some = gradients(d_o, dlse, wanted);
      for (int i = 0; i < 3; ++i) {
        if (wanted >> i & 1)
          EXPECT_EQ(some[i], all[i]) << i << " of " << wanted;
        else
          EXPECT_TRUE(std::isnan(some[i][0])) << i << " of " << wanted;
      }
    }
    EXPECT_EQ(gradients({}, dlse, 7), gradients(zero, dlse, 7));
    test::HostTensor no_gradient(DType::f32, statistic);
    no_gradient.fill(0);
    EXPECT_EQ(gradients(d_o, {}, 7), gradients(d_o, no_gradient, 7));
  }
}

}  // namespace
}  // namespace everglow
