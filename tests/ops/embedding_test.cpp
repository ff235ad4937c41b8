// Embedding beside its cases: gradients as differences, whole numbers, indices of any shape, errors.
#include "ops/small_layers.hpp"

#include <everglow/embedding.hpp>

#include <gtest/gtest.h>

namespace everglow {
namespace {

using test::HostTensor;

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
