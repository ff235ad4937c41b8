// Attention in bf16 where the instruction set multiplies pairs: q·k and do·v as they are stored, in each way of cutting the work;
// widened on a lower set, for an odd head dimension, and for a few queries.
#include "core/isa.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace everglow {
namespace {

using test::HostTensor;

DeviceDescription cpu_with(const char* isa) {
  DeviceDescription out = Device::cpu();
  out.isa = isa;
  return out;
}

struct Sizes {
  std::int64_t batch, queries, keys, head_dim;
};

/// Tensors of one head or two, and a run of them.
struct Problem {
  AttentionDescription d;
  Sizes s;
  HostTensor q, k, v, d_o, o, lse, dq, dk, dv;
  Problem(const Sizes& sizes, std::int64_t heads)
      : d{.heads = heads, .head_dim = sizes.head_dim, .scale = 1, .dtype = DType::bf16, .training = true}, s(sizes) {
    const auto tensor = [&](std::int64_t rows) {
      return HostTensor(DType::bf16, {s.batch, rows, heads, s.head_dim}, s.head_dim + 3);  // NaN between rows
    };
    for (HostTensor* t : {&q, &d_o, &o, &dq}) *t = tensor(s.queries);
    for (HostTensor* t : {&k, &v, &dk, &dv}) *t = tensor(s.keys);
    lse = HostTensor(DType::f32, {s.batch, heads, s.queries});
  }
  void run(const DeviceDescription& device, int threads = 1) {
    const AttentionPlan plan(d, {.batch = s.batch, .queries = s.queries, .keys = s.keys}, device,
                             {.threads = threads, .force = "cpu.attention_flash2", .deterministic = true});
    const test::Scratch scratch(plan.workspace_bytes());
    plan.forward({.q = q, .k = k, .v = v, .o = o, .lse = lse}, {scratch.data(), scratch.bytes()});
    plan.backward({.q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv},
                  {scratch.data(), scratch.bytes()});
    EXPECT_TRUE(scratch.guards_intact());
    for (const HostTensor* t : {&o, &dq, &dk, &dv}) EXPECT_TRUE(t->guards_intact());
  }
  std::vector<std::vector<double>> results() const { return {o.values(), lse.values(), dq.values(), dk.values(), dv.values()}; }
};

class AttentionPairs : public testing::Test {
 protected:
  void SetUp() override {
    if (best_isa() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no avx512_bf16, or this build is for another processor";
  }
};

// Blocks of queries; whole small heads.
constexpr Sizes ways[] = {{1, 20, 80, 2}, {1, 20, 20, 16}};

/// Scores of a subnormal q and a large k, 2^-3 times the head dimension, which its pairs do not see.
TEST_F(AttentionPairs, ScoresAreOfNumbersAsTheyAreStored) {
  for (const Sizes& s : ways)
    for (const char* isa : {"avx512", "avx512_bf16"}) {
      Problem p(s, 1);
      p.q.fill(0x1p-130), p.k.fill(0x1p127), p.v.fill(1), p.d_o.fill(0);
      p.run(cpu_with(isa));
      const double score = std::string(isa) == "avx512" ? 0.125 * static_cast<double>(s.head_dim) : 0;
      EXPECT_NEAR(p.lse.at(0), score + std::log(static_cast<double>(s.keys)), 1e-5) << isa << ' ' << s.keys;
    }
}

/// The first half of the keys has v = 2^118 and k = 1, the others 0 for both; do is 2^-130, and q is 0, so that P is 1 / keys. With
/// D the head dimension, dP is D / 2^12 for that half, delta half of it, and dq the sum of dS over it: D / 2^14, or minus that
/// where dP counts as 0.
TEST_F(AttentionPairs, GradientsOfScoresAreOfNumbersAsTheyAreStored) {
  for (const Sizes& s : ways)
    for (const char* isa : {"avx512", "avx512_bf16"}) {
      Problem p(s, 1);
      p.q.fill(0), p.d_o.fill(0x1p-130);
      std::vector<double> halves(static_cast<std::size_t>(s.keys * s.head_dim));
      std::fill_n(halves.begin(), halves.size() / 2, 1.0);
      p.k.set(halves);
      for (double& value : halves) value *= 0x1p118;
      p.v.set(halves);
      p.run(cpu_with(isa));
      const double dq = static_cast<double>(s.head_dim) * 0x1p-14;
      EXPECT_NEAR(p.dq.at(0), std::string(isa) == "avx512" ? dq : -dq, dq * 0x1p-7) << isa << ' ' << s.keys;
    }
}

TEST_F(AttentionPairs, BitsDoNotDependOnThreadsOrTheRestOfTheBatch) {
  for (const Sizes& s : {Sizes{3, 140, 200, 40}, {3, 64, 33, 32}, {3, 20, 600, 18}}) {
    Problem all(s, 2);
    std::uint64_t stream = 0;
    for (HostTensor* t : {&all.q, &all.k, &all.v, &all.d_o}) t->uniform(++stream, -1, 1);
    all.run(cpu_with("avx512_bf16"));
    const auto expected = all.results();
    for (const int threads : {2, 3, 9}) {
      all.run(cpu_with("avx512_bf16"), threads);
      EXPECT_EQ(all.results(), expected) << threads;
    }
    Problem one({1, s.queries, s.keys, s.head_dim}, 2);
    const auto last = [](const HostTensor& from, const HostTensor& to) {
      const std::vector<double> values = from.values();
      const auto n = static_cast<std::ptrdiff_t>(to.values().size());
      return std::vector<double>(values.end() - n, values.end());
    };
    one.q.set(last(all.q, one.q)), one.k.set(last(all.k, one.k)), one.v.set(last(all.v, one.v));
    one.d_o.set(last(all.d_o, one.d_o));
    one.run(cpu_with("avx512_bf16"));
    const auto alone = one.results();
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(std::equal(alone[i].rbegin(), alone[i].rend(), expected[i].rbegin())) << i << ' ' << s.keys;
  }
}

/// An odd head dimension has no whole words, and one query by itself none to share: both have the bits of the set below.
TEST_F(AttentionPairs, TheRestIsWidened) {
  for (const Sizes& s : {Sizes{1, 70, 90, 33}, {1, 4, 90, 32}}) {
    Problem p(s, 2);
    std::uint64_t stream = 0;
    for (HostTensor* t : {&p.q, &p.k, &p.v, &p.d_o}) t->uniform(++stream, -1, 1);
    p.run(cpu_with("avx512"));
    const auto lower = p.results();
    p.run(cpu_with("avx512_bf16"));
    EXPECT_EQ(p.o.values(), lower[0]) << s.head_dim;
    EXPECT_EQ(p.lse.values(), lower[1]) << s.head_dim;
  }
}

}  // namespace
}  // namespace everglow
