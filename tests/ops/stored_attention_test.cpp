// Attention against what PyTorch computed in f64 and JAX in f32: the reference in f64, and every row that takes f32. Padding is
// NaN.
#include "cases/proof/attention_problem.hpp"
#include "ops/small_layers.hpp"
#include "ops/stored_vectors.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using proof::Values;
using test::StoredCase;

proof::AttentionResults expected_attention(const StoredCase& c) {
  const auto values = [&](const char* key) { return c.has(key) ? c.values(key) : Values(); };
  return {
      .o = values("o"), .lse = values("lse"), .dq = values("dq"), .dk = values("dk"), .dv = values("dv"), .dbias = values("dbias")};
}

/// `stored` is the error of the stored values as a share of the bound of ours.
void expect_attention(const StoredCase& c, AttentionDescription d, const AttentionSizes& sizes, const proof::AttentionInputs& in,
                      double stored) {
  const proof::AttentionResults exact = expected_attention(c), bounds = proof::attention_bounds(d, sizes, in, exact);
  const auto compare = [&](const Values& actual, const Values& expected, Values bound) {
    for (double& value : bound) value *= 1 + stored;
    return test::compare(actual, expected, bound);
  };
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", d, sizes)) {
    SCOPED_TRACE(row);
    const proof::AttentionResults r = proof::run_attention(d, sizes, in, {.options = {.force = row}});
    EXPECT_EQ("", compare(r.o, exact.o, bounds.o)) << "o";
    EXPECT_EQ("", compare(r.lse, exact.lse, bounds.lse)) << "lse";
    EXPECT_EQ("", compare(r.dq, exact.dq, bounds.dq)) << "dq";
    EXPECT_EQ("", compare(r.dk, exact.dk, bounds.dk)) << "dk";
    EXPECT_EQ("", compare(r.dv, exact.dv, bounds.dv)) << "dv";
    EXPECT_EQ("", compare(r.dbias, exact.dbias, bounds.dbias)) << "dbias";
  }
}

/// The bounds are those of attention_bounds.cpp, from the magnitudes of the case.
void expect_cases(const std::vector<StoredCase>& cases, DType computed) {
  for (const StoredCase& c : cases)
    for (const DType dtype : {DType::f64, DType::f32}) {
      if (dtype == DType::f64 && computed == DType::f32) continue;
      SCOPED_TRACE(c.name + ", " + std::string(name(dtype)));
      const AttentionDescription d{
          .heads = static_cast<std::int64_t>(c.number("heads")),
          .kv_heads = static_cast<std::int64_t>(c.number("kv_heads")),
          .head_dim = c.size("q", 3),
          .value_dim = c.size("v", 3),
          .scale = static_cast<float>(c.number("scale")),
          .causal = c.number("causal") != 0,
          .alignment = c.whole("bottom_right", 0) != 0 ? CausalAlignment::bottom_right : CausalAlignment::top_left,
          .window_left = c.whole("left", -1),
          .window_right = c.whole("right", -1),
          .softcap = c.numbers.contains("softcap") ? static_cast<float>(c.number("softcap")) : 0,
          .alibi = c.has("slopes"),
          .bias = c.has("bias"),
          .query_lengths = c.has("query_lengths"),
          .key_lengths = c.has("key_lengths"),
          .dtype = dtype,
          .training = true};
      const AttentionSizes sizes{.batch = c.size("q", 0), .queries = c.size("q", 1), .keys = c.size("k", 1)};
      proof::AttentionInputs in;
      in.q = c.values("q"), in.k = c.values("k"), in.v = c.values("v"), in.d_o = c.values("d_o");
      in.dlse = c.has("dlse") ? c.values("dlse") : Values(c.values("lse").size(), 0);
      if (d.bias) in.bias = c.values("bias"), in.bias_rows = c.size("bias", 0), in.bias_heads = c.size("bias", 1);
      if (d.alibi) in.slopes = c.values("slopes"), in.slope_rows = c.tensors.at("slopes").shape.size() == 2 ? sizes.batch : 0;
      if (d.query_lengths) in.query_lengths = c.values("query_lengths");
      if (d.key_lengths) in.key_lengths = c.values("key_lengths");
      expect_attention(c, d, sizes, in, dtype == computed ? 1 : 0x1p-29);
    }
}

TEST(Torch, Attention_sanitize) { expect_cases(test::torch_cases("attention"), DType::f64); }
/// JAX sums scores and softmax in f32 whatever the inputs are.
TEST(Jax, Attention_sanitize) { expect_cases(test::jax_cases("attention"), DType::f32); }

}  // namespace
}  // namespace everglow
