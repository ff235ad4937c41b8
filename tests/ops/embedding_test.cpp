// Embedding: every case and every accepting row against a plain sum in the test, exact integers, gradients, thread counts, errors.
#include "cases/case.hpp"
#include "ops/small_layers.hpp"

#include <everglow/embedding.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow {
namespace {

using cases::Case;
using test::HostTensor;

struct Problem {
  EmbeddingDescription d;
  EmbeddingSizes sizes;
  DType gradient;
  HostTensor indices, table, dy;
};

Problem make_problem(const Case& c) {
  Problem p;
  p.d = {.vocabulary = c.integer("vocabulary", 1),
         .width = c.integer("width", 1),
         .dtype = parse_dtype(c.text("dtype", "f32")),
         .padding_index = c.integer("padding_index", -1)};
  p.sizes = {c.integer("indices", 1)};
  p.gradient = parse_dtype(c.text("gradient", name(p.d.dtype)));
  p.indices = HostTensor(c.flag("wide") ? DType::i64 : DType::i32, {p.sizes.indices});
  p.indices.integers(1, 0, static_cast<int>(std::max<std::int64_t>(p.d.vocabulary, 1) - 1));
  for (std::int64_t n = 0; p.d.padding_index >= 0 && n < p.sizes.indices; n += 9)  // a draw may miss it
    p.indices.put(n, static_cast<double>(p.d.padding_index));
  p.table = HostTensor(p.d.dtype, {p.d.vocabulary, p.d.width}, p.d.width + 3);
  p.table.uniform(2, -1, 1);
  p.dy = HostTensor(p.d.dtype, {p.sizes.indices, p.d.width}, p.d.width + 2);
  p.dy.uniform(3, -1, 1);
  return p;
}

/// The gradient in double, the sum of magnitudes, and the number of terms of each element.
struct Sums {
  std::vector<double> exact, bound;
};

/// A sum of k terms in f32, in any order, is within (k - 1) u of the sum of magnitudes; then one rounding to the type of dtable.
Sums expected_gradient(const Problem& p, const std::vector<double>& before) {
  const double u = test::unit_roundoff(DType::f32), storage = test::unit_roundoff(p.gradient);
  const auto width = static_cast<std::size_t>(p.d.width);
  Sums s{before, std::vector<double>(before.size())};
  std::vector<double> magnitude(before.size()), terms(before.size(), 0);
  for (std::size_t e = 0; e < before.size(); ++e) magnitude[e] = std::fabs(before[e]);
  for (std::int64_t n = 0; n < p.sizes.indices; ++n) {
    const auto row = static_cast<std::size_t>(p.indices.at(n));
    if (static_cast<std::int64_t>(row) == p.d.padding_index) continue;
    for (std::size_t i = 0; i < width; ++i) {
      const double value = p.dy.at(n * p.d.width + static_cast<std::int64_t>(i));
      s.exact[row * width + i] += value;
      magnitude[row * width + i] += std::fabs(value);
      terms[row * width + i] += 1;
    }
  }
  for (std::size_t e = 0; e < before.size(); ++e)
    s.bound[e] = terms[e] * u * magnitude[e] + storage * std::fabs(s.exact[e]) + 0x1p-25;
  return s;
}

class EmbeddingCases : public testing::TestWithParam<Case> {};

TEST_P(EmbeddingCases, ForwardCopiesRows) {
  const Problem p = make_problem(GetParam());
  for (const auto& row : test::accepting_rows<EmbeddingPlan>("embedding", p.d, p.sizes)) {
    SCOPED_TRACE(row);
    const EmbeddingPlan plan(p.d, p.sizes, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    HostTensor y(p.d.dtype, {p.sizes.indices, p.d.width}, p.d.width + 1);
    plan.forward({p.indices, p.table, y}, {scratch.data(), scratch.bytes()});
    for (std::int64_t n = 0; n < p.sizes.indices; ++n)
      for (std::int64_t i = 0; i < p.d.width; ++i)
        ASSERT_EQ(y.at(n * p.d.width + i), p.table.at(static_cast<std::int64_t>(p.indices.at(n)) * p.d.width + i));
    EXPECT_TRUE(y.guards_intact() && scratch.guards_intact());
  }
}

TEST_P(EmbeddingCases, BackwardSumsTheUses) {
  const Problem p = make_problem(GetParam());
  for (const auto& row : test::accepting_rows<EmbeddingPlan>("embedding", p.d, p.sizes))
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(row + (accumulate ? " accumulate" : ""));
      std::vector<double> first;
      for (const int threads : {1, 2, 3}) {
        const EmbeddingPlan plan(p.d, p.sizes, Device::cpu(), {.threads = threads, .force = row, .deterministic = true});
        const test::Scratch scratch(plan.workspace_bytes());
        HostTensor dtable(p.gradient, {p.d.vocabulary, p.d.width}, p.d.width + 4);
        if (accumulate) dtable.uniform(4, -1, 1);
        const auto before =
            accumulate ? dtable.values() : std::vector<double>(static_cast<std::size_t>(p.d.vocabulary * p.d.width), 0);
        const Sums expected = expected_gradient(p, before);
        plan.backward({p.indices, p.dy, dtable, accumulate}, {scratch.data(), scratch.bytes()});
        EXPECT_EQ("", test::compare(dtable.values(), expected.exact, expected.bound));
        EXPECT_TRUE(dtable.guards_intact() && scratch.guards_intact());
        if (first.empty()) first = dtable.values();
        EXPECT_EQ(first, dtable.values()) << "the same bits for any thread count";
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, EmbeddingCases, testing::ValuesIn(cases::tested("embedding")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

TEST(Embedding, GradientAgreesWithDifferences) {
  // The layer is linear in the table: a central difference of sum(dy y) is exact but for roundoff, 2^-53 times the sum over h.
  const EmbeddingDescription d{.vocabulary = 5, .width = 3, .dtype = DType::f64};
  HostTensor indices(DType::i64, {7}), table(DType::f64, {5, 3}), dy(DType::f64, {7, 3}), y(DType::f64, {7, 3}),
      dtable(DType::f64, {5, 3});
  indices.set({0, 4, 4, 1, 0, 0, 2});
  table.uniform(1, -1, 1);
  dy.uniform(2, -1, 1);
  const EmbeddingPlan plan(d, {7});
  const test::Scratch scratch(plan.workspace_bytes());
  plan.backward({indices, dy, dtable}, {scratch.data(), scratch.bytes()});
  const auto objective = [&] {
    plan.forward({indices, table, y}, {scratch.data(), scratch.bytes()});
    double sum = 0;
    for (std::int64_t i = 0; i < 21; ++i) sum += y.at(i) * dy.at(i);
    return sum;
  };
  for (std::int64_t e = 0; e < 15; ++e) {
    const double before = table.at(e);
    table.put(e, before + 0.5);
    const double up = objective();
    table.put(e, before - 0.5);
    EXPECT_NEAR(up - objective(), dtable.at(e), 1e-13);
    table.put(e, before);
  }
}

TEST(Embedding, IndicesOfAnyShapeAndWholeNumbersAreExact_sanitize) {
  for (const auto& row : kernels("embedding", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    const EmbeddingPlan plan({.vocabulary = 6, .width = 40}, {12}, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    HostTensor indices(DType::i32, {4, 3}), table(DType::f32, {6, 40}), y(DType::f32, {4, 3, 80}), dtable(DType::f32, {6, 40});
    indices.integers(1, 0, 5);
    table.integers(2, -50, 50);
    const auto half = y.view().narrow(2, 40, 40);  // the right half of a wider tensor
    plan.forward({indices, table, half}, {scratch.data(), scratch.bytes()});
    plan.backward({indices, half, dtable}, {scratch.data(), scratch.bytes()});
    for (std::int64_t v = 0; v < 6; ++v) {
      double uses = 0;
      for (std::int64_t n = 0; n < 12; ++n) uses += indices.at(n) == static_cast<double>(v) ? 1 : 0;
      for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(dtable.at(v * 40 + i), uses * table.at(v * 40 + i));
    }
    HostTensor one(DType::i32, {}), single(DType::f32, {40});
    one.put(0, 3);
    plan.forward({one, table, single}, {scratch.data(), scratch.bytes()});
    EXPECT_EQ(single.at(7), table.at(3 * 40 + 7));
  }
}

TEST(Embedding, ErrorsNameTheArgument_sanitize) {
  const EmbeddingPlan plan({.vocabulary = 6, .width = 4}, {3});
  const test::Scratch scratch(plan.workspace_bytes());
  HostTensor indices(DType::i32, {3}), table(DType::f32, {6, 4}), y(DType::f32, {3, 4}), other(DType::f32, {4, 4});
  const auto forward = [&](const ConstTensorView& list, const TensorView& out) {
    return test::error_of([&] { plan.forward({list, table, out}, {scratch.data(), scratch.bytes()}); });
  };
  indices.set({0, 5, 6});
  EXPECT_EQ(forward(indices, y), "[embedding.forward] indices: expected 0 ... 5, got 6 in row 2");
  indices.set({0, -1, 5});
  EXPECT_EQ(forward(indices, y), "[embedding.forward] indices: expected 0 ... 5, got -1 in row 1");
  EXPECT_EQ(test::error_of([&] {
              plan.backward({indices, y, table}, {scratch.data(), scratch.bytes()});
            }),
            "[embedding.backward] indices: expected 0 ... 5, got -1 in row 1");
  indices.set({0, 1, 5});
  EXPECT_EQ(forward(indices, other), "[embedding.forward] y: expected [3, 4] f32 cpu, got [4, 4] f32 cpu");
  EXPECT_EQ(forward(table.view().narrow(1, 0, 1), y), "[embedding.forward] indices: expected i32 or i64, got [6, 1] f32 cpu");
  EXPECT_EQ(forward(HostTensor(DType::i32, {4}), y), "[embedding.forward] indices: expected at most 3, got 4");
  EXPECT_EQ(forward(indices, table.view().narrow(0, 0, 3)),
            "[embedding.forward] y: expected memory apart from table, got an overlap");
  EXPECT_EQ(test::error_of([&] {
              plan.backward({indices, y, {}}, {scratch.data(), scratch.bytes()});
            }),
            "[embedding.backward] dtable: expected [6, 4], got not given");
  EXPECT_EQ(test::error_of([] { EmbeddingPlan({.vocabulary = 3, .padding_index = 3}, {1}); }),
            "[embedding.plan] padding_index: expected -1 or less than vocabulary 3, got 3");
}

}  // namespace
}  // namespace everglow
