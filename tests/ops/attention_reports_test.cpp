// What users of other libraries have reported of attention (repository#number in the comments), each as a test of what is right
// here. FA is Dao-AILab/flash-attention.
#include "cases/proof/attention_problem.hpp"
#include "cases/proof/proof.hpp"
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

using proof::AttentionInputs;
using proof::AttentionResults;
using proof::Values;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A case that a test changes before it runs.
struct Problem {
  AttentionDescription d;
  AttentionSizes s;
  AttentionInputs in;

  explicit Problem(const std::string& line) {
    const cases::Case c = cases::parse("attention " + line);
    d = proof::attention_description(c), s = proof::attention_sizes(c), in = proof::attention_inputs(d, s, c);
  }
  /// Other lengths; what they leave out is no longer NaN.
  void set_lengths(const Values& queries, const Values& keys) {
    in.query_lengths = queries, in.key_lengths = keys;
    for (Values* values : {&in.q, &in.d_o, &in.k, &in.v})
      for (double& value : *values) value = std::isnan(value) ? 0.25 : value;
  }
  std::vector<std::string> rows() const { return test::accepting_rows<AttentionPlan>("attention", d, s); }
  AttentionResults run(const std::string& row) const { return proof::run_attention(d, s, in, {.options = {.force = row}}); }
};

void expect_finite(const AttentionResults& r) {
  for (const Values* values : {&r.o, &r.dq, &r.dk, &r.dv, &r.dbias})
    EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isfinite(x); }));
  EXPECT_TRUE(std::none_of(r.lse.begin(), r.lse.end(), [](double x) { return std::isnan(x); }));
}

void expect_proved(const Problem& p) {
  const AttentionResults exact = proof::exact_attention(p.d, p.s, p.in), bound = proof::attention_bounds(p.d, p.s, p.in, exact);
  for (const auto& row : p.rows()) {
    SCOPED_TRACE(row);
    const AttentionResults r = p.run(row);
    expect_finite(r);
    EXPECT_EQ("", test::compare(r.o, exact.o, bound.o)) << "o";
    EXPECT_EQ("", test::compare(r.lse, exact.lse, bound.lse)) << "lse";
    EXPECT_EQ("", test::compare(r.dq, exact.dq, bound.dq)) << "dq";
    EXPECT_EQ("", test::compare(r.dk, exact.dk, bound.dk)) << "dk";
    EXPECT_EQ("", test::compare(r.dv, exact.dv, bound.dv)) << "dv";
    EXPECT_EQ("", test::compare(r.dbias, exact.dbias, bound.dbias)) << "dbias";
    EXPECT_TRUE(r.guards_intact);
  }
}
void expect_proved(const std::string& line) {
  SCOPED_TRACE(line);
  expect_proved(Problem(line));
}

// FA#443: packed sequences of 76, 34 and 146 queries with one key each, causal: dq was NaN where a query sees no key.
TEST(AttentionReports, CausalQueriesBeforeTheFirstKeyHaveZeroGradients) {
  Problem p("batch=3 queries=146 keys=1 heads=2 head_dim=32 packed=1 causal=1");
  p.set_lengths({76, 34, 146}, {1, 1, 1});
  expect_proved(p);
  for (const auto& row : p.rows()) {
    const AttentionResults r = p.run(row);
    for (std::size_t i = 0; i < std::size_t{75 * 2 * 32}; ++i) EXPECT_EQ(r.dq[i], 0) << row << ' ' << i;
    EXPECT_EQ(r.lse[0], -infinity);
    EXPECT_TRUE(std::isfinite(r.lse[75]));
  }
}

// FA#1778, FA#2199: more queries than keys, causal or with a window. FA#978, FA#1930: LSE of a row without keys was +inf.
TEST(AttentionReports, QueriesWithoutKeysGiveZeroAndMinusInfinity_sanitize) {
  for (const char* mask : {"causal=1", "window_right=0", "window_left=1 window_right=1 alignment=top_left"}) {
    const Problem p("batch=1 queries=70 keys=9 heads=1 head_dim=8 " + std::string(mask));
    expect_proved(p);
    const auto unseen = static_cast<std::size_t>(p.d.alignment == CausalAlignment::top_left ? 69 : 0);
    for (const auto& row : p.rows()) {
      const AttentionResults r = p.run(row);
      EXPECT_EQ(r.lse[unseen], -infinity) << row;
      for (std::size_t e = 0; e < 8; ++e) EXPECT_TRUE(r.o[unseen * 8 + e] == 0 && r.dq[unseen * 8 + e] == 0) << row;
    }
  }
}

// pytorch#101967, pytorch#127055: NaN in keys and values that are masked by their length reached the output. The inputs of a case
// with lengths are NaN in all padding.
TEST(AttentionReports, NanInPaddingDoesNotLeak_sanitize) {
  expect_proved("batch=3 queries=9 keys=70 heads=2 head_dim=20 lengths=1");
  expect_proved("batch=3 queries=1 keys=70 heads=2 head_dim=20 lengths=1 causal=1");
  expect_proved("batch=3 queries=20 keys=30 heads=2 head_dim=16 lengths=1 dtype=bf16");
}

// pytorch#103963, #103749, #110213, #109517, #124877, onnxruntime#28904: a mask that is -inf in a whole row gives 0 and -inf, no
// NaN and no mean of the values; one that is the lowest number gives their mean. Both have finite gradients.
TEST(AttentionReports, WholeRowsMaskedByTheBias_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    SCOPED_TRACE(dtype);
    Problem p("batch=1 queries=20 keys=24 heads=1 head_dim=16 bias=full dtype=" + std::string(dtype));
    const double lowest = p.d.dtype == DType::f16 ? -65504 : -0x1.FEp127;
    for (std::size_t j = 0; j < 24; ++j) p.in.bias[3 * 24 + j] = -infinity, p.in.bias[5 * 24 + j] = lowest;
    for (std::size_t j = 4; j < 24; ++j) p.in.bias[7 * 24 + j] = -infinity;
    for (const auto& row : p.rows()) {
      SCOPED_TRACE(row);
      const AttentionResults r = p.run(row);
      expect_finite(r);
      EXPECT_EQ(r.lse[3], -infinity);
      for (std::size_t e = 0; e < 16; ++e) {
        EXPECT_TRUE(r.o[3 * 16 + e] == 0 && r.dq[3 * 16 + e] == 0);
        if (p.d.dtype == DType::f16) continue;  // beside -65504 a score still counts
        double mean = 0;
        for (std::size_t j = 0; j < 24; ++j) mean += p.in.v[j * 16 + e] / 24;
        EXPECT_NEAR(r.o[5 * 16 + e], mean, 32 * 0x1p-24 + test::unit_roundoff(p.d.dtype));
      }
      for (std::size_t j = 0; j < 24; ++j) EXPECT_EQ(r.dbias[3 * 24 + j], 0);
      for (std::size_t j = 4; j < 24; ++j) EXPECT_EQ(r.dbias[7 * 24 + j], 0);
    }
  }
}

// pytorch#196678, trl#7181: dq was NaN for queries of 128 n + 64 with logits about -120, where exp(-LSE) overflows.
TEST(AttentionReports, LogitsFarFromZeroStayFinite) {
  for (const double logit : {-120.0, 120.0, -1e4}) {
    Problem p("batch=1 queries=192 keys=192 heads=1 head_dim=16 bias=broadcast scale=0.25");
    for (double& value : p.in.bias) value = static_cast<float>(logit + value);
    expect_proved(p);
  }
}

// pytorch#121558: bf16 inputs of 1.3e5, whose products pass the range of f16 and whose scale makes them small again.
TEST(AttentionReports, LargeInputsWithASmallScale) {
  for (const char* dtype : {"f32", "bf16"}) {
    Problem p("batch=1 queries=33 keys=40 heads=1 head_dim=64 scale=1e-11 dtype=" + std::string(dtype));
    for (double& value : p.in.q) value *= 131072;
    for (double& value : p.in.k) value *= 131072;
    expect_proved(p);
  }
}

// cudnn-frontend#160: NaN gradients for an odd sequence length. FA#1347, FA#28: head dimensions that are no multiple of 8. FA#1306:
// wrong gradients for 256. pytorch#128348: values of another width. pytorch#138529: one query, and one query with one key.
TEST(AttentionReports, OddSizes) {
  for (const char* sizes :
       {"queries=129 keys=131 head_dim=16", "queries=31 keys=33 head_dim=1", "queries=31 keys=33 head_dim=41 causal=1",
        "queries=20 keys=70 head_dim=256 dtype=f16", "queries=20 keys=33 head_dim=24 value_dim=72", "queries=1 keys=33 head_dim=64",
        "queries=1 keys=1 head_dim=64", "queries=1 keys=1 head_dim=64 dtype=bf16 causal=1"})
    expect_proved("batch=2 heads=2 " + std::string(sizes));
}

// FA#1500, FA#767, FA#1311, FA#2260: batches past 65535 rows. With one key o is v and dv is d_o, and scores have no gradient.
TEST(AttentionReports, ManyShortRows) {
  Problem p("batch=70001 queries=1 keys=1 heads=1 head_dim=4");
  std::fill(p.in.dlse.begin(), p.in.dlse.end(), 0.0);
  for (const auto& row : p.rows()) {
    const AttentionResults r = p.run(row);
    EXPECT_EQ(r.o, p.in.v) << row;
    // P = exp(S - LSE), with S and LSE below 4 and each within 8 roundings of itself, and a product.
    EXPECT_EQ("", test::compare(r.dv, p.in.d_o, 2 * 4 * 8 * 0x1p-24)) << row;
    for (const Values* gradient : {&r.dq, &r.dk})
      for (const double value : *gradient) ASSERT_LE(std::fabs(value), 8 * 4 * 0x1p-24) << row;
  }
}

// FA#355, #325, #91, #1149, #818, #2777, pytorch#138340, #176915: gradients and inputs with stride 0 or other strides than o's.
TEST(AttentionReports, ExpandedTensorsAreReadAsTheyAre_sanitize) {
  using test::HostTensor;
  const AttentionSizes s{.batch = 3, .queries = 21, .keys = 34};
  const AttentionDescription d{.heads = 4, .head_dim = 16, .training = true};
  const auto drawn = [](std::uint64_t stream, std::vector<std::int64_t> shape) {
    HostTensor out(DType::f32, std::move(shape));
    out.uniform(stream, -1, 1);
    return out;
  };
  const HostTensor q = drawn(1, {3, 21, 4, 16}), one_k = drawn(2, {1, 34, 1, 16}), one_v = drawn(3, {3, 34, 1, 16}),
                   one_d_o = drawn(4, {1, 1, 1, 16});
  const auto expanded = [](const HostTensor& t, std::initializer_list<std::int64_t> shape) {
    TensorView view = t;
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    for (int i = 0; i < 4; ++i)
      if (t.view().shape[i] == 1) view.strides[i] = 0;
    return view;
  };
  const TensorView k = expanded(one_k, {3, 34, 4, 16}), v = expanded(one_v, {3, 34, 4, 16}),
                   d_o = expanded(one_d_o, {3, 21, 4, 16});
  const auto dense = [](const TensorView& view) {
    HostTensor out(DType::f32, {view.size(0), view.size(1), view.size(2), view.size(3)});
    out.set(test::gathered(view));
    return out;
  };
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", d, s)) {
    const AttentionPlan plan(d, s, Device::cpu(), {.force = row});
    const auto run = [&](const TensorView& keys, const TensorView& values, const TensorView& gradient) {
      const test::Scratch scratch(plan.workspace_bytes());
      const HostTensor o(DType::f32, {3, 21, 4, 16}), lse(DType::f32, {3, 4, 21}), dq(DType::f32, {3, 21, 4, 16}),
          dk(DType::f32, {3, 34, 4, 16}), dv(DType::f32, {3, 34, 4, 16});
      plan.forward({.q = q, .k = keys, .v = values, .o = o, .lse = lse}, {scratch.data(), scratch.bytes()});
      AttentionBackward b{.q = q, .k = keys, .v = values, .o = o, .lse = lse};
      b.d_o = gradient, b.dq = dq, b.dk = dk, b.dv = dv;
      plan.backward(b, {scratch.data(), scratch.bytes()});
      return std::vector<Values>{o.values(), lse.values(), dq.values(), dk.values(), dv.values()};
    };
    EXPECT_EQ(run(k, v, d_o), run(dense(k), dense(v), dense(d_o))) << row;
  }
}

// flashinfer#1193, sglang#33915: an option that one backend dropped without a word.
TEST(AttentionReports, EveryOptionChangesTheResultOfEveryRow) {
  const Problem plain("batch=2 queries=40 keys=45 heads=2 head_dim=16");
  for (const char* option : {"softcap=0.5", "alibi=1", "bias=full", "dropout=0.3", "causal=1", "causal=1 alignment=top_left",
                             "window_left=3", "window_right=2", "scale=0.7", "lengths=1"}) {
    const Problem p("batch=2 queries=40 keys=45 heads=2 head_dim=16 " + std::string(option));
    for (const auto& row : p.rows()) {
      const AttentionResults with = p.run(row), without = plain.run(row);
      EXPECT_NE(with.o, without.o) << row << ' ' << option;
      EXPECT_NE(with.dq, without.dq) << row << ' ' << option;
      EXPECT_NE(with.dk, without.dk) << row << ' ' << option;
    }
  }
}

// FA#1537: sequences of at most one query, some of none. FA#2470, FA#2515, FA#1155: no keys, no queries. FA#2562, FA#2568: no
// queries at head dimension 256. pytorch#133780: no rows. In all of them what lies outside the tensors is guarded.
TEST(AttentionReports, EmptySequences_sanitize) {
  Problem p("batch=4 queries=1 keys=3 heads=2 head_dim=8 packed=1");
  p.set_lengths({0, 1, 0, 1}, {3, 2, 0, 0});
  expect_proved(p);
  for (const char* sizes : {"batch=2 queries=5 keys=0 head_dim=16", "batch=2 queries=0 keys=5 head_dim=16",
                            "batch=2 queries=0 keys=5 head_dim=256", "batch=0 queries=5 keys=5 head_dim=16",
                            "batch=2 queries=0 keys=0 head_dim=16 packed=1", "batch=3 queries=4 keys=0 head_dim=256 packed=1"})
    expect_proved("heads=2 " + std::string(sizes));
}

// FA#1085, FA#2550, torchtitan#3235: keys split among threads where some rows have fewer keys than there are parts.
TEST(AttentionReports, SplitKeysOfUnequalRows) {
  for (const char* form : {"lengths=1", "packed=1", "packed=1 window_left=100 dtype=bf16"}) {
    Problem p("batch=4 queries=1 keys=2300 heads=1 head_dim=16 " + std::string(form));
    p.set_lengths({1, 1, 1, 1}, {2300, 1, 0, 700});
    expect_proved(p);
  }
}

// FA#1164, torchtitan#3709, torchtitan#3893: a plan kept the lengths of an earlier run.
TEST(AttentionReports, APlanServesOtherLengthsInTheNextRun) {
  Problem first("batch=3 queries=20 keys=30 heads=2 head_dim=16 packed=1"), second = first;
  first.set_lengths({20, 0, 7}, {30, 2, 9}), second.set_lengths({1, 20, 20}, {8, 30, 0});
  for (const auto& row : first.rows()) {
    const AttentionPlan plan(first.d, first.s, Device::cpu(), {.force = row});
    const auto with_one_plan = [&](const Problem& p) { return proof::run_attention(p.d, p.s, p.in, {.plan = &plan}); };
    const AttentionResults a = with_one_plan(first), b = with_one_plan(second), c = with_one_plan(first);
    EXPECT_TRUE(a.o == first.run(row).o && a.dk == first.run(row).dk) << row;
    EXPECT_TRUE(b.o == second.run(row).o && b.dk == second.run(row).dk) << row;
    EXPECT_TRUE(a.o == c.o && a.dq == c.dq) << row;
  }
}

// FA#414, FA#349, FA#746, FA#2244: gradients that differed from run to run.
TEST(AttentionReports, RunsRepeatBitForBit) {
  const Problem p("batch=2 queries=150 keys=700 heads=4 kv_heads=2 head_dim=16 dropout=0.2 bias=broadcast causal=1");
  for (const bool deterministic : {false, true}) {
    const auto run = [&] {
      return proof::run_attention(p.d, p.s, p.in,
                                  {.options = {.threads = 3, .force = "cpu.attention_flash2", .deterministic = deterministic}});
    };
    const AttentionResults once = run();
    for (int i = 0; i < 3; ++i) {
      const AttentionResults again = run();
      EXPECT_TRUE(once.o == again.o && once.dq == again.dq && once.dk == again.dk && once.dv == again.dv &&
                  once.dbias == again.dbias);
    }
  }
}

// FA#1025: softcap after the mask. FA#1065, FA#1033: its derivative from masked scores, NaN where a row had no key.
TEST(AttentionReports, SoftcapComesBeforeTheMask) {
  for (const char* mask : {"causal=1", "causal=1 lengths=1", "window_left=2 window_right=3", "causal=1 dtype=bf16"})
    expect_proved("batch=2 queries=40 keys=19 heads=2 head_dim=16 softcap=0.8 " + std::string(mask));
}

// flashinfer#1606, flashinfer#5101: slopes were those of the local head number where heads are spread over devices.
TEST(AttentionReports, SlopesBelongToTheHeadsThatBringThem) {
  const Problem all("batch=2 queries=20 keys=33 heads=4 head_dim=16 alibi=1");
  Problem half("batch=2 queries=20 keys=33 heads=2 head_dim=16 alibi=1");
  const auto last_heads = [](const Values& of_four) {
    Values out;
    for (std::size_t i = 0; i < of_four.size(); ++i)
      if (i / 16 % 4 >= 2) out.push_back(of_four[i]);
    return out;
  };
  half.in.q = last_heads(all.in.q), half.in.k = last_heads(all.in.k), half.in.v = last_heads(all.in.v);
  half.in.slopes = {all.in.slopes[2], all.in.slopes[3]};
  for (const auto& row : all.rows()) EXPECT_EQ(half.run(row).o, last_heads(all.run(row).o)) << row;
}

// FA#2151: where many scores of a row tie at the maximum, a biased rounding of the probabilities drove training apart. The error of
// o is then that of its last rounding: of either sign, half a unit at most, mean 0.
TEST(AttentionReports, RowsOfEqualScoresRoundWithoutBias) {
  Problem p("batch=2 queries=64 keys=96 heads=4 head_dim=64 dtype=bf16");
  std::fill(p.in.q.begin(), p.in.q.end(), 0.0);
  for (double& value : p.in.v) value = std::fabs(value);
  // Another mean for each query, so that there are many roundings: a mask of whole keys by the length of a window.
  p.d.causal = true;
  const Values exact = proof::exact_attention(p.d, p.s, p.in).o, came = p.run("cpu.attention_flash2").o;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double share = (came[i] - exact[i]) / exact[i];
    sum += share, squares += share * share;
  }
  // Independent errors of mean 0 pass six standard deviations of their sum once in 5e8 draws.
  EXPECT_GT(squares, 0);
  EXPECT_LE(std::fabs(sum), 6 * std::sqrt(squares));
}

// FA#1897, FA#2450: a row's result depended on the other rows of the batch through the way its keys were split.
TEST(AttentionReports, ARowDoesNotDependOnItsBatch_sanitize) {
  for (const char* line : {"queries=1 keys=2300 head_dim=16", "queries=90 keys=130 head_dim=16 causal=1 window_left=50",
                           "queries=20 keys=20 head_dim=16", "queries=30 keys=600 head_dim=12 dtype=bf16"}) {
    const Problem many("batch=5 heads=2 kv_heads=1 " + std::string(line));
    Problem one("batch=1 heads=2 kv_heads=1 " + std::string(line));
    const auto part = [](const Values& of_five, std::size_t row) {
      const std::size_t n = of_five.size() / 5;
      return Values(of_five.begin() + static_cast<std::ptrdiff_t>(row * n),
                    of_five.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
    };
    const proof::AttentionRun how{.options = {.threads = 2, .force = "cpu.attention_flash2", .deterministic = true}};
    const AttentionResults all = proof::run_attention(many.d, many.s, many.in, how);
    for (const std::size_t row : {std::size_t{0}, std::size_t{3}}) {
      one.in.q = part(many.in.q, row), one.in.k = part(many.in.k, row), one.in.v = part(many.in.v, row);
      one.in.d_o = part(many.in.d_o, row), one.in.dlse = part(many.in.dlse, row);
      const AttentionResults alone = proof::run_attention(one.d, one.s, one.in, how);
      EXPECT_EQ(alone.o, part(all.o, row)) << line;
      EXPECT_EQ(alone.lse, part(all.lse, row)) << line;
      EXPECT_EQ(alone.dq, part(all.dq, row)) << line;
      EXPECT_EQ(alone.dk, part(all.dk, row)) << line;
      EXPECT_EQ(alone.dv, part(all.dv, row)) << line;
    }
  }
}

// fla#1029: heads that key heads do not divide. xformers#1122: a mask longer than the keys was read out of bounds. pytorch#133671,
// pytorch#187506: elements of a row that are not side by side were read as if they were.
TEST(AttentionReports, WhatCannotBeServedIsAnError_sanitize) {
  using test::HostTensor;
  EXPECT_EQ(
      test::error_of([] { AttentionPlan({.heads = 6, .kv_heads = 4, .head_dim = 8}, {.batch = 1, .queries = 2, .keys = 2}); }),
      "[attention.plan] kv_heads: expected a divisor of 6 heads, got 4");
  const AttentionPlan plan({.head_dim = 8, .bias = true}, {.batch = 1, .queries = 2, .keys = 3});
  const HostTensor q(DType::f32, {1, 2, 1, 8}), k(DType::f32, {1, 3, 1, 8}), o(DType::f32, {1, 2, 1, 8});
  const HostTensor bias(DType::f32, {1, 1, 2, 3}), longer(DType::f32, {1, 1, 2, 4}), wide(DType::f32, {1, 2, 1, 16});
  const test::Scratch scratch(plan.workspace_bytes());
  const auto error = [&](const ConstTensorView& queries, const ConstTensorView& mask) {
    return test::error_of([&] {
      plan.forward({.q = queries, .k = k, .v = k, .o = o, .bias = mask}, {scratch.data(), scratch.bytes()});
    });
  };
  EXPECT_EQ(error(q, bias), "");
  EXPECT_EQ(error(q, longer), "[attention.forward] bias: expected [1, 1, 2, 3] f32 cpu, got [1, 1, 2, 4] f32 cpu");
  TensorView apart = wide.view().narrow(3, 0, 8);
  apart.strides[3] = 2;
  EXPECT_EQ(error(apart, bias), "[attention.forward] q: expected a last dimension whose stride is 1, got stride 2");
}

}  // namespace
}  // namespace everglow
