// The checks of arguments: what passes, what throws, and the text.
#include "core/check.hpp"
#include "ops/small_layers.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using test::error_of;

float memory[1000];

TensorView view(std::initializer_list<std::int64_t> shape, std::int64_t offset = 0) { return {memory + offset, DType::f32, shape}; }

TEST(Check, TensorNamesExpectedAndActual_sanitize) {
  const auto check = [](const ConstTensorView& v, DType dtype = DType::f32, Device device = Device::cpu()) {
    return error_of([&] { require_tensor("layer.forward", "x", v, {2, -1}, dtype, device); });
  };
  EXPECT_EQ(check(view({2, 9})), "");
  EXPECT_EQ(check(view({2, 0})), "");
  EXPECT_EQ(check({}), "[layer.forward] x: expected [2, any] f32 cpu, got not given");
  EXPECT_EQ(check(view({3, 9})), "[layer.forward] x: expected [2, any] f32 cpu, got [3, 9] f32 cpu");
  EXPECT_EQ(check(view({2})), "[layer.forward] x: expected [2, any] f32 cpu, got [2] f32 cpu");
  EXPECT_EQ(check(view({2, 9}), DType::bf16), "[layer.forward] x: expected [2, any] bf16 cpu, got [2, 9] f32 cpu");
  EXPECT_EQ(check(view({2, 9}), DType::f32, Device::cuda(1)),
            "[layer.forward] x: expected [2, any] f32 cuda:1, got [2, 9] f32 cpu");
  EXPECT_EQ(check(TensorView(nullptr, DType::f32, {2, 9})),
            "[layer.forward] x: expected memory for [2, 9] f32 cpu, got a null pointer");
  EXPECT_EQ(check(TensorView(nullptr, DType::f32, {2, 0})), "");
  EXPECT_EQ(check(TensorView(reinterpret_cast<char*>(memory) + 2, DType::f32, {2, 9})),
            "[layer.forward] x: expected an address that is a multiple of 4 bytes");
}

TEST(Check, GradientsAreF32OrTheStorageType) {
  const auto check = [](DType dtype) {
    return error_of([&] { require_gradient("l.b", "dw", TensorView(memory, dtype, {3}), {3}, DType::bf16, Device::cpu()); });
  };
  EXPECT_EQ(check(DType::f32), "");
  EXPECT_EQ(check(DType::bf16), "");
  EXPECT_EQ(check(DType::f16), "[l.b] dw: expected [3] f32 or bf16 cpu, got [3] f16 cpu");
}

TEST(Check, UnitStride) {
  EXPECT_EQ(error_of([] { require_unit_stride("l.f", "x", view({3, 4})); }), "");
  EXPECT_EQ(error_of([] {
              require_unit_stride("l.f", "x", view({3, 4}).transposed(0, 1));
            }),
            "[l.f] x: expected a last dimension whose stride is 1, got stride 4");
  EXPECT_EQ(error_of([] {
              require_unit_stride("l.f", "x", view({3, 1}).transposed(0, 1));
            }),
            "")
      << "one row of a matrix of one column";
}

TEST(Check, SelfOverlap) {
  const auto check = [](const TensorView& v) { return error_of([&] { require_no_self_overlap("l.f", "y", v); }); };
  EXPECT_EQ(check(view({3, 4})), "");
  EXPECT_EQ(check(view({3, 4}).transposed(0, 1)), "");
  TensorView repeated = view({3, 4});
  repeated.strides[0] = 0;
  EXPECT_EQ(check(repeated), "[l.f] y: expected elements that do not overlap, got stride 0 in dimension 0");
  repeated.strides[0] = 3;
  EXPECT_EQ(check(repeated), "[l.f] y: expected elements that do not overlap, got stride 3 in dimension 0");
  repeated.strides[0] = -4;
  EXPECT_EQ(check(repeated), "");
  repeated.shape[0] = 1, repeated.strides[0] = 0;
  EXPECT_EQ(check(repeated), "");
}

TEST(Check, Apart) {
  const auto apart = [](const TensorView& a, const TensorView& b) {
    return error_of([&] { require_apart("l.f", "y", a, "x", b); }).empty();
  };
  EXPECT_TRUE(apart(view({10}), view({10}, 10)));
  EXPECT_FALSE(apart(view({10}), view({10}, 9)));
  EXPECT_TRUE(apart(view({10}), {}));
  EXPECT_TRUE(apart(view({0}), view({10})));
  const TensorView wide = view({5, 20});
  EXPECT_TRUE(apart(wide.narrow(1, 0, 10), wide.narrow(1, 10, 10))) << "columns of one matrix interleave";
  EXPECT_FALSE(apart(wide.narrow(1, 0, 10), wide.narrow(1, 9, 10)));
  EXPECT_FALSE(apart(wide.narrow(1, 5, 10), view({5, 10}))) << "other strides";
  EXPECT_EQ(error_of([] { require_apart("l.f", "y", view({10}), "x", view({10})); }),
            "[l.f] y: expected memory apart from x, got an overlap");
}

TEST(Check, FoldsLeadingDimensions) {
  EXPECT_EQ(to_string(folded("l.f", "x", view({3, 4, 5}))), "[12, 5] f32 cpu");
  EXPECT_EQ(to_string(folded("l.f", "x", view({5}))), "[1, 5] f32 cpu");
  EXPECT_EQ(to_string(folded("l.f", "x", view({3, 0, 5}))), "[0, 5] f32 cpu");
  const TensorView part = folded("l.f", "x", view({3, 4, 10}).narrow(2, 2, 5));
  EXPECT_EQ(part.strides[0], 10);
  EXPECT_EQ(error_of([] {
              folded("l.f", "x", view({3, 4, 5}).narrow(1, 0, 2));
            }),
            "[l.f] x: expected leading dimensions that fold into one, got stride 20 in dimension 0");
  EXPECT_EQ(error_of([] { folded("l.f", "x", view({})); }), "[l.f] x: expected at least one dimension, got a scalar");
  EXPECT_FALSE(folded("l.f", "x", TensorView()).given());
}

TEST(Check, Workspace) {
  alignas(64) char bytes[192];
  EXPECT_EQ(error_of([&] { require_workspace("l.f", {bytes, 128}, 128); }), "");
  EXPECT_EQ(error_of([&] { require_workspace("l.f", {}, 0); }), "");
  EXPECT_EQ(error_of([&] {
              require_workspace("l.f", {bytes, 127}, 128);
            }),
            "[l.f] workspace: expected at least 128 bytes, got 127");
  EXPECT_EQ(error_of([&] {
              require_workspace("l.f", {nullptr, 500}, 128);
            }),
            "[l.f] workspace: expected at least 128 bytes, got 0");
  EXPECT_EQ(error_of([&] {
              require_workspace("l.f", {bytes + 32, 128}, 128);
            }),
            "[l.f] workspace: expected an address that is a multiple of 64 bytes");
}

}  // namespace
}  // namespace everglow
