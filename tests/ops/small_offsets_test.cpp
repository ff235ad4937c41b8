// Softmax, embedding, loss and elementwise operations on views whose offsets pass 2^31 elements and 2^32 bytes, in memory of which
// only a few pages exist: they give the bits that they give on dense views.
#include "ops/small_layers.hpp"
#include "support/sparse.hpp"

#include <everglow/embedding.hpp>
#include <everglow/loss.hpp>
#include <everglow/softmax.hpp>

#include <gtest/gtest.h>

namespace everglow {
namespace {

using test::HostTensor;

constexpr std::int64_t step = (std::int64_t{1} << 31) + 24;  // elements from one row to the next

/// Two or three rows far apart.
class FarRows {
 public:
  FarRows(DType dtype, std::int64_t rows, std::int64_t columns)
      : memory_(static_cast<std::size_t>((rows - 1) * step + columns) * size_of(dtype)),
        view_(memory_.data(), dtype, {rows, columns}) {
    view_.strides[0] = step;
  }
  bool exists() const { return memory_.data() != nullptr; }
  TensorView view() const { return view_; }
  FarRows& operator=(const HostTensor& values) {
    if (exists()) test::scattered(view_, values.values());
    return *this;
  }
  std::vector<double> values() const { return test::gathered(view_); }

 private:
  test::SparseMemory memory_;
  TensorView view_;
};

TEST(Softmax, OffsetsPastTwoToThe31) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    HostTensor x(dtype, {2, 50}), dy(dtype, {2, 50}), y(dtype, {2, 50}), dx(dtype, {2, 50});
    x.uniform(1, -4, 4), dy.uniform(2, -1, 1);
    FarRows far_x(dtype, 2, 50), far_dy(dtype, 2, 50), far_y(dtype, 2, 50), far_dx(dtype, 2, 50);
    if (!far_x.exists() || !far_dy.exists() || !far_y.exists() || !far_dx.exists()) GTEST_SKIP() << "no such address range";
    far_x = x, far_dy = dy;
    for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
      const SoftmaxPlan plan({.dtype = dtype}, {2, 50}, Device::cpu(), {.force = row});
      plan.forward({x, y}, {});
      plan.backward({y, dy, dx}, {});
      plan.forward({far_x.view(), far_y.view()}, {});
      plan.backward({far_y.view(), far_dy.view(), far_dx.view()}, {});
      EXPECT_EQ(far_y.values(), y.values()) << row;
      EXPECT_EQ(far_dx.values(), dx.values()) << row;
    }
  }
}

TEST(Embedding, OffsetsPastTwoToThe31) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    HostTensor indices(DType::i32, {3}), table(dtype, {3, 20}), y(dtype, {3, 20}), dtable(dtype, {3, 20});
    indices.set({2, 0, 2});
    table.uniform(1, -1, 1);
    FarRows far_table(dtype, 3, 20), far_y(dtype, 3, 20), far_dtable(dtype, 3, 20);
    if (!far_table.exists() || !far_y.exists() || !far_dtable.exists()) GTEST_SKIP() << "no such address range";
    far_table = table;
    for (const auto& row : kernels("embedding", DeviceKind::cpu)) {
      const EmbeddingPlan plan({.vocabulary = 3, .width = 20, .dtype = dtype}, {3}, Device::cpu(), {.force = row});
      const test::Scratch scratch(plan.workspace_bytes());
      plan.forward({indices, table, y}, {scratch.data(), scratch.bytes()});
      plan.backward({indices, y, dtable}, {scratch.data(), scratch.bytes()});
      plan.forward({indices, far_table.view(), far_y.view()}, {scratch.data(), scratch.bytes()});
      plan.backward({indices, far_y.view(), far_dtable.view()}, {scratch.data(), scratch.bytes()});
      EXPECT_EQ(far_y.values(), y.values()) << row;
      EXPECT_EQ(far_dtable.values(), dtable.values()) << row;
    }
  }
}

TEST(Loss, OffsetsPastTwoToThe31) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    HostTensor x(dtype, {2, 6}), weight(dtype, {3, 6}), targets(DType::i32, {2}), loss(DType::f32, {1}), far_loss(DType::f32, {1});
    x.uniform(1, -1, 1), weight.uniform(2, -1, 1), targets.set({2, 0});
    HostTensor dx(dtype, {2, 6}), dweight(dtype, {3, 6});
    FarRows far_x(dtype, 2, 6), far_weight(dtype, 3, 6), far_dx(dtype, 2, 6), far_dweight(dtype, 3, 6);
    for (const auto* rows : {&far_x, &far_weight, &far_dx, &far_dweight})
      if (!rows->exists()) GTEST_SKIP() << "no such address range";
    far_x = x, far_weight = weight;
    for (const auto& row : kernels("loss", DeviceKind::cpu)) {
      const LossPlan plan({.inputs = 6, .classes = 3, .dtype = dtype, .training = true}, {2}, Device::cpu(),
                          {.force = row, .deterministic = true});
      const test::Scratch scratch(plan.workspace_bytes());
      plan.forward_backward(
          {.forward = {.x = x, .weight = weight, .bias = {}, .targets = targets, .loss = loss}, .dx = dx, .dweight = dweight},
          {scratch.data(), scratch.bytes()});
      plan.forward_backward(
          {.forward = {.x = far_x.view(), .weight = far_weight.view(), .bias = {}, .targets = targets, .loss = far_loss},
           .dx = far_dx.view(),
           .dweight = far_dweight.view()},
          {scratch.data(), scratch.bytes()});
      EXPECT_EQ(far_loss.at(0), loss.at(0)) << row;
      EXPECT_EQ(far_dx.values(), dx.values()) << row;
      EXPECT_EQ(far_dweight.values(), dweight.values()) << row;
    }
  }
}

TEST(Pointwise, OffsetsPastTwoToThe31) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    HostTensor a(dtype, {3, 10}), b(dtype, {3, 10}), y(dtype, {3, 10});
    a.uniform(1, -1, 1), b.uniform(2, -1, 1);
    FarRows far_a(dtype, 3, 10), far_b(dtype, 3, 10), far_y(dtype, 3, 10);
    if (!far_a.exists() || !far_b.exists() || !far_y.exists()) GTEST_SKIP() << "no such address range";
    far_a = a, far_b = b;
    for (const auto& row : kernels("pointwise", DeviceKind::cpu)) {
      const PointwisePlan plan({.operation = Pointwise::dropout, .dtype = dtype, .dropout = 0.3F}, {30}, Device::cpu(),
                               {.force = row});
      const auto run = [&](const TensorView& from, const TensorView& added, const TensorView& to) {
        plan.run({.a = from, .b = added, .y = to, .dropout_seed = 5, .dropout_offset = std::uint64_t{1} << 40});
      };
      run(a, b, y);
      run(far_a.view(), far_b.view(), far_y.view());
      EXPECT_EQ(far_y.values(), y.values()) << row;
      run(far_a.view().transposed(0, 1), far_b.view().transposed(0, 1), far_y.view().transposed(0, 1));  // other masks
      const HostTensor across(dtype, {10, 3});
      run(a.view().transposed(0, 1), b.view().transposed(0, 1), across);
      EXPECT_EQ(test::gathered(far_y.view().transposed(0, 1)), across.values()) << row;
    }
  }
}

}  // namespace
}  // namespace everglow
