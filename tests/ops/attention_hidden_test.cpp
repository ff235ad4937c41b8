// A key that a mask, a length or a bias of -inf hides from a query takes no part in what that query gives, whatever the key, its
// value or its query hold: Inf and NaN there leave every result that does not see them as it was, bit for bit (pytorch#101967).
#include "cases/proof/attention_problem.hpp"
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace everglow {
namespace {

using proof::AttentionInputs;
using proof::AttentionResults;
using proof::Values;

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

/// One case, and which of its pairs of a query and a key are seen: written down here once more, plainly.
struct Problem {
  AttentionDescription d;
  AttentionSizes s;
  AttentionInputs in;

  explicit Problem(const std::string& line) {
    const cases::Case c = cases::parse("attention " + line);
    d = proof::attention_description(c), s = proof::attention_sizes(c), in = proof::attention_inputs(d, s, c);
    if (d.kv_heads == 0) d.kv_heads = d.heads;
    if (d.value_dim == 0) d.value_dim = d.head_dim;
    // A third of the pairs, all pairs of query 1, and for every query key 2.
    for (std::size_t i = 0; i < in.bias.size(); ++i) {
      const auto key = static_cast<std::int64_t>(i) % s.keys, query = static_cast<std::int64_t>(i) / s.keys % s.queries;
      if (i * 2654435761U % 3 == 0 || query == 1 || key == 2) in.bias[i] = -infinity;
    }
  }

  std::int64_t length(const Values& lengths, std::int64_t b, std::int64_t all) const {
    return lengths.empty() ? all : static_cast<std::int64_t>(lengths[static_cast<std::size_t>(b)]);
  }
  std::size_t bias_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t row = in.bias_rows == 1 ? 0 : b, head = in.bias_heads == 1 ? 0 : h;
    return static_cast<std::size_t>(((row * in.bias_heads + head) * s.queries + i) * s.keys + j);
  }
  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t queries = length(in.query_lengths, b, s.queries), keys = length(in.key_lengths, b, s.keys);
    const std::int64_t centre = i + (d.alignment == CausalAlignment::bottom_right ? keys - queries : 0);
    return i < queries && j < keys && !(d.causal && j > centre) && !(d.window_left >= 0 && j < centre - d.window_left) &&
           !(d.window_right >= 0 && j > centre + d.window_right) && !(d.bias && in.bias[bias_at(b, h, i, j)] == -infinity);
  }
  std::int64_t kv_head(std::int64_t h) const { return h / (d.heads / d.kv_heads); }
};

/// A value of one tensor that is spoiled.
struct Spot {
  char tensor;  // q, k, v or o for d_o
  std::int64_t b, head, step;
};

void spoil(Problem& p, const Spot& spot, double with) {
  const bool of_query = spot.tensor == 'q' || spot.tensor == 'o';
  Values& values = spot.tensor == 'q' ? p.in.q : spot.tensor == 'o' ? p.in.d_o : spot.tensor == 'k' ? p.in.k : p.in.v;
  const std::int64_t width = spot.tensor == 'q' || spot.tensor == 'k' ? p.d.head_dim : p.d.value_dim;
  const std::int64_t steps = of_query ? p.s.queries : p.s.keys, heads = of_query ? p.d.heads : p.d.kv_heads;
  const std::int64_t row = ((spot.b * steps + spot.step) * heads + spot.head) * width;
  values[static_cast<std::size_t>(row + spot.step % width)] = with;
}

/// What must stay as it was, and that what sees the spoiled values is not finite.
class Comparison {
 public:
  Comparison(const Problem& p, const std::vector<Spot>& spots, const AttentionResults& before, const AttentionResults& after)
      : p_(p), before_(before), after_(after) {
    for (std::int64_t b = 0; b < p.s.batch; ++b)
      for (std::int64_t h = 0; h < p.d.heads; ++h)
        for (std::int64_t i = 0; i < p.s.queries; ++i)
          for (const Spot& spot : spots) reached_.push_back(reaches(spot, b, h, i));
    spots_ = spots.size();
  }

  void check() {
    std::int64_t kept = 0;
    for (std::int64_t b = 0; b < p_.s.batch; ++b) {
      for (std::int64_t h = 0; h < p_.d.heads; ++h)
        for (std::int64_t i = 0; i < p_.s.queries; ++i) kept += query(b, h, i);
      for (std::int64_t h = 0; h < p_.d.kv_heads; ++h)
        for (std::int64_t j = 0; j < p_.s.keys; ++j) kept += key(b, h, j);
    }
    EXPECT_GT(kept, 0) << "the case proves nothing";
    if (p_.d.bias) bias();
  }

 private:
  bool reaches(const Spot& spot, std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (spot.b != b) return false;
    if (spot.tensor == 'q' || spot.tensor == 'o') return spot.head == h && spot.step == i;
    return spot.head == p_.kv_head(h) && p_.sees(b, h, i, spot.step);
  }
  bool reached(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const auto first =
        reached_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>((b * p_.d.heads + h) * p_.s.queries + i) * spots_);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(spots_), [](bool one) { return one; });
  }
  void same(const Values& before, const Values& after, std::int64_t row, std::int64_t width, const char* name) const {
    for (auto e = static_cast<std::size_t>(row * width); e < static_cast<std::size_t>((row + 1) * width); ++e)
      ASSERT_EQ(after[e], before[e]) << name << " of row " << row << ", element " << e;
  }
  bool query(std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (reached(b, h, i)) return false;
    const std::int64_t row = (b * p_.s.queries + i) * p_.d.heads + h;
    same(before_.o, after_.o, row, p_.d.value_dim, "o");
    same(before_.lse, after_.lse, (b * p_.d.heads + h) * p_.s.queries + i, 1, "lse");
    same(before_.dq, after_.dq, row, p_.d.head_dim, "dq");
    return true;
  }
  bool key(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
    for (std::int64_t h = 0; h < p_.d.heads; ++h)
      for (std::int64_t i = 0; i < p_.s.queries; ++i)
        if (p_.kv_head(h) == kv_head && reached(b, h, i) && p_.sees(b, h, i, j)) return false;
    const std::int64_t row = (b * p_.s.keys + j) * p_.d.kv_heads + kv_head;
    same(before_.dk, after_.dk, row, p_.d.head_dim, "dk");
    same(before_.dv, after_.dv, row, p_.d.value_dim, "dv");
    return true;
  }
  void bias() const {
    Values free(before_.dbias.size(), 1);
    for (std::int64_t b = 0; b < p_.s.batch; ++b)
      for (std::int64_t h = 0; h < p_.d.heads; ++h)
        for (std::int64_t i = 0; i < p_.s.queries; ++i)
          for (std::int64_t j = 0; j < p_.s.keys && reached(b, h, i); ++j)
            if (p_.sees(b, h, i, j)) free[p_.bias_at(b, h, i, j)] = 0;
    for (std::size_t e = 0; e < free.size(); ++e)
      if (free[e] == 1) {
        ASSERT_EQ(after_.dbias[e], before_.dbias[e]) << "dbias " << e;
      }
  }

  const Problem& p_;
  const AttentionResults &before_, &after_;
  std::vector<bool> reached_;  // [B, Hq, Sq, spots]
  std::size_t spots_ = 0;
};

/// The same case on every row and instruction set, and on the reference in f64.
std::vector<std::pair<std::string, std::function<AttentionResults(const Problem&)>>> ways(const Problem& p) {
  std::vector<std::pair<std::string, std::function<AttentionResults(const Problem&)>>> out;
  out.emplace_back("exact", [](const Problem& q) { return proof::exact_attention(q.d, q.s, q.in); });
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", p.d, p.s))
    for (const std::string isa : {"portable", "avx2", "avx512", "avx512_bf16"}) {
      const bool reference = row.starts_with("reference");  // has no kernels
      if (reference && isa != "portable") continue;
      for (const bool deterministic : {false, true}) {
        if (reference && deterministic) continue;
        out.emplace_back(row + ' ' + isa, [=](const Problem& q) {
          DeviceDescription device = Device::cpu();
          device.isa = isa;
          const PlanOptions options{.threads = 2, .force = row, .deterministic = deterministic};
          return proof::run_attention(q.d, q.s, q.in, {.options = options, .device = device});
        });
      }
    }
  return out;
}

void expect_unreached(const std::string& line, const std::vector<Spot>& spots) {
  SCOPED_TRACE(line);
  const Problem clean(line);
  for (const auto& [name, run] : ways(clean)) {
    SCOPED_TRACE(name);
    const AttentionResults before = run(clean);
    for (const double with : {nan, infinity}) {
      SCOPED_TRACE(with);
      Problem spoiled = clean;
      for (const Spot& spot : spots) spoil(spoiled, spot, with);
      const AttentionResults after = run(spoiled);
      Comparison(clean, spots, before, after).check();
    }
  }
}

// Keys and values that later queries of the same tile see.
TEST(AttentionHidden, LaterKeysOfACausalTile_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string of = std::string(" dtype=") + dtype;
    expect_unreached("batch=1 queries=70 keys=75 heads=2 kv_heads=1 head_dim=20 causal=1" + of,
                     {{'k', 0, 0, 40}, {'v', 0, 0, 66}, {'v', 0, 0, 30}});
    expect_unreached("batch=2 queries=20 keys=24 heads=2 head_dim=16 causal=1" + of,
                     {{'k', 0, 1, 15}, {'v', 1, 0, 11}, {'v', 1, 0, 22}});
    expect_unreached("batch=2 queries=13 keys=15 heads=2 head_dim=16 causal=1" + of,
                     {{'k', 0, 1, 12}, {'v', 1, 0, 9}, {'v', 0, 0, 14}});
    expect_unreached("batch=2 queries=3 keys=90 heads=2 head_dim=24 value_dim=9 causal=1" + of, {{'k', 0, 1, 89}, {'v', 1, 0, 88}});
  }
}

TEST(AttentionHidden, KeysOutsideAWindow) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string of = std::string(" dtype=") + dtype;
    expect_unreached(
        "batch=1 queries=100 keys=150 heads=1 head_dim=16 window_left=5 window_right=3 alignment=top_left softcap=2" + of,
        {{'k', 0, 0, 20}, {'v', 0, 0, 60}, {'v', 0, 0, 63}, {'v', 0, 0, 140}});
    expect_unreached("batch=1 queries=30 keys=30 heads=1 head_dim=32 window_left=4 window_right=2" + of,
                     {{'k', 0, 0, 8}, {'v', 0, 0, 21}});
  }
}

// Queries and gradients of outputs that do not see a key of their tile leave its gradients alone.
TEST(AttentionHidden, QueriesThatDoNotSeeAKey_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string of = std::string(" dtype=") + dtype;
    expect_unreached("batch=1 queries=70 keys=70 heads=2 kv_heads=1 head_dim=20 causal=1" + of, {{'q', 0, 0, 10}, {'o', 0, 1, 33}});
    expect_unreached("batch=1 queries=21 keys=24 heads=2 head_dim=16 causal=1" + of, {{'q', 0, 0, 3}, {'o', 0, 1, 7}});
    expect_unreached("batch=1 queries=13 keys=15 heads=2 head_dim=16 window_left=4 window_right=0" + of,
                     {{'q', 0, 0, 3}, {'o', 0, 1, 7}});
    expect_unreached("batch=2 queries=40 keys=50 heads=1 head_dim=8 bias=full dropout=0.2" + of,
                     {{'q', 0, 0, 10}, {'o', 1, 0, 33}});
  }
}

// Key 2 is hidden from every query by the bias: it may hold anything.
TEST(AttentionHidden, ABiasOfMinusInfinity_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string of = std::string(" dtype=") + dtype;
    const std::vector<Spot> spots{{'k', 0, 0, 2}, {'v', 0, 0, 2}, {'k', 1, 0, 50}, {'v', 1, 0, 33}};
    expect_unreached("batch=2 queries=40 keys=70 heads=2 kv_heads=1 head_dim=20 bias=full" + of, spots);
    expect_unreached("batch=2 queries=40 keys=70 heads=2 kv_heads=1 head_dim=16 bias=broadcast softcap=2 alibi=1 causal=1" + of,
                     spots);
    expect_unreached("batch=2 queries=40 keys=70 heads=2 kv_heads=1 head_dim=12 bias=heads dropout=0.3" + of, spots);
  }
}

// A handful of queries, one at a time, and their keys in parts.
TEST(AttentionHidden, ABiasOfMinusInfinityForAFewQueries_sanitize) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string of = std::string(" dtype=") + dtype;
    const std::vector<Spot> spots{{'k', 0, 0, 2}, {'v', 0, 0, 2}, {'v', 0, 0, 33}, {'v', 0, 0, 34}};
    expect_unreached("batch=2 queries=4 keys=37 heads=1 head_dim=20 value_dim=70 bias=full dropout=0.2" + of, spots);
    expect_unreached("batch=1 queries=3 keys=2100 heads=1 head_dim=8 bias=full" + of, spots);
    expect_unreached("batch=1 queries=1 keys=70 heads=1 head_dim=20 value_dim=30 bias=full dropout=0.2" + of, spots);
    expect_unreached("batch=2 queries=2 keys=2100 heads=1 head_dim=8 bias=full" + of, spots);
  }
}

TEST(AttentionHidden, PackedSequencesAndLengths) {
  for (const char* form : {"packed=1", "lengths=1", "packed=1 bias=rows", "lengths=1 bias=full dtype=bf16"})
    expect_unreached(std::string("batch=3 queries=39 keys=70 heads=2 head_dim=17 causal=1 ") + form,
                     {{'k', 0, 0, 30}, {'v', 0, 1, 12}, {'v', 2, 1, 60}, {'o', 0, 0, 3}});
}

/// What a query does see is not lost on the way.
TEST(AttentionHidden, WhatIsSeenReachesTheResult) {
  for (const char* line :
       {"batch=1 queries=70 keys=70 heads=1 head_dim=20 causal=1", "batch=1 queries=20 keys=20 heads=1 head_dim=16",
        "batch=1 queries=20 keys=20 heads=1 head_dim=16 causal=1", "batch=1 queries=40 keys=70 heads=1 head_dim=8 bias=full",
        "batch=1 queries=3 keys=70 heads=1 head_dim=8 bias=full"}) {
    SCOPED_TRACE(line);
    Problem p(line);
    const std::int64_t key = 13;
    spoil(p, {'v', 0, 0, key}, nan);
    for (const auto& row : test::accepting_rows<AttentionPlan>("attention", p.d, p.s)) {
      SCOPED_TRACE(row);
      const AttentionResults r = proof::run_attention(p.d, p.s, p.in, {.options = {.force = row}});
      for (std::int64_t i = 0; i < p.s.queries; ++i) {
        const auto at = static_cast<std::size_t>(i * p.d.value_dim + key % p.d.value_dim);
        EXPECT_EQ(std::isnan(r.o[at]), p.sees(0, 0, i, key)) << i;
        EXPECT_EQ(std::isnan(r.dq[static_cast<std::size_t>(i * p.d.head_dim)]), p.sees(0, 0, i, key)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace everglow
