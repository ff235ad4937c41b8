// What holds for views, copies, plans and devices whatever the layer: bounds that cannot overflow, overlaps found exactly, and no
// argument that is ignored.
#include "core/check.hpp"
#include "core/dispatch.hpp"
#include "ops/small_layers.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>
#include <set>

namespace everglow {
namespace {

using test::error_of;
using test::HostTensor;

constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();

TEST(TensorView, BoundsDoNotOverflow_sanitize) {
  const HostTensor t(DType::f32, {4, 6});
  const TensorView v = t;
  EXPECT_EQ(error_of([&] { v.narrow(1, 2, far); }), "[tensor.narrow] expected a part that lies inside the view");
  EXPECT_EQ(error_of([&] { v.narrow(1, far, 2); }), "[tensor.narrow] expected a part that lies inside the view");
  EXPECT_EQ(error_of([&] { v.split(1, -2, -3); }), "[tensor.split] expected outer x inner to equal the dimension");
  for (const auto& [a, b] : {std::pair{0, 2}, std::pair{2, 0}, std::pair{-3, 0}, std::pair{0, -3}})
    EXPECT_EQ(error_of([&, a = a, b = b] { v.transposed(a, b); }), "[tensor.transposed] expected two dimensions of the view");
}

/// The bytes of a view, one by one.
std::set<std::uintptr_t> elements(const TensorView& view) {
  std::set<std::uintptr_t> out;
  for (std::int64_t i = 0; i < view.elements(); ++i)
    out.insert(reinterpret_cast<std::uintptr_t>(view.data) +
               static_cast<std::uintptr_t>(proof::offset_of(view, i)) * size_of(view.dtype));
  return out;
}

bool apart(const TensorView& a, const TensorView& b) {
  return error_of([&] { require_apart("l.f", "y", a, "x", b); }).empty();
}

TEST(Check, ApartWhereWiderStridesAreNoMultiplesOfRows) {
  static float memory[200];
  TensorView a(memory, DType::f32, {2, 3, 4});
  a.strides = {20, 8, 1};
  TensorView b = a;
  b.data = memory + 4;
  EXPECT_FALSE(apart(a, b)) << "a[1, 0, :] is b[0, 2, :]";
  a.strides[0] = b.strides[0] = 24;
  EXPECT_TRUE(apart(a, b));
  a.strides[0] = b.strides[0] = 28;
  EXPECT_TRUE(apart(a, b)) << "a[1] begins where b[0] has ended";
}

/// Every answer on random strided views against a count of the elements they share: a shared element is always found, and where
/// strides are the same and nest, views that share none count as apart.
TEST(Check, ApartAgreesWithACountOfSharedElements) {
  static float memory[4000];
  std::mt19937_64 random(test::seed());
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int shared_views = 0, apart_views = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    TensorView a(memory + 2000, DType::f32, {draw(1, 3), draw(1, 4), draw(1, 5)});
    a.strides[2] = draw(1, 2);
    a.strides[1] = draw(0, 3) + a.strides[2] * 5;
    a.strides[0] = draw(0, 9) + a.strides[1] * 4;
    for (int i = 0; i < 3; ++i)
      if (draw(0, 3) == 0) a.strides[i] = -a.strides[i];
    TensorView b = a;
    b.data = memory + 2000 + draw(-60, 60);
    for (int i = 0; i < 3; ++i) b.shape[i] = draw(1, 3 + i);
    const auto of_a = elements(a), of_b = elements(b);
    const bool shared = std::any_of(of_a.begin(), of_a.end(), [&](std::uintptr_t e) { return of_b.contains(e); });
    (shared ? shared_views : apart_views) += 1;
    ASSERT_EQ(apart(a, b), !shared) << to_string(a) << " and " << to_string(b) << " in trial " << trial;
  }
  EXPECT_GT(shared_views, 300);
  EXPECT_GT(apart_views, 300);
}

TEST(Copy, ChecksWhereItWrites_sanitize) {
  const HostTensor from(DType::f32, {2, 3});
  EXPECT_EQ(error_of([&] {
              copy(TensorView(nullptr, DType::f32, {2, 3}), from);
            }),
            "[copy] to: expected memory for [2, 3] f32 cpu, got a null pointer");
  alignas(4) static char bytes[32];
  EXPECT_EQ(error_of([&] {
              copy(TensorView(bytes + 2, DType::f32, {2, 3}), from);
            }),
            "[copy] to: expected an address that is a multiple of 4 bytes");
  const HostTensor to(DType::f32, {2, 3});
  EXPECT_EQ(error_of([&] { copy(to, from, {.device = Device::cuda(0)}); }),
            "[copy] stream: expected one of the device of a view, got one of cuda:0");
}

TEST(Plans, RefuseAStreamOfAnotherDevice) {
  const HostTensor a(DType::f32, {4}), y(DType::f32, {4});
  const PointwisePlan plan({}, {4});
  EXPECT_EQ(error_of([&] { plan.run({.a = a, .y = y}, {}, {.device = Device::cuda(0)}); }),
            "[pointwise.run] stream: expected one of cpu, got one of cuda:0");
  const SoftmaxPlan softmax({}, {2, 2});
  EXPECT_EQ(error_of([&] { softmax.forward({.x = a, .y = y}, {}, {.device = Device::cuda(1)}); }),
            "[softmax.forward] stream: expected one of cpu, got one of cuda:1");
}

TEST(Plans, TakeThreadsAndInstructionsFromTheDescription) {
  DeviceDescription device = Device::cpu();
  device.cores = 3;
  device.isa = "portable";
  const auto query = make_query(PointwiseDescription{}, PointwiseSizes{}, device, {});
  EXPECT_EQ(query.isa, Isa::portable);
  const char* wish = std::getenv("EVERGLOW_THREADS");
  EXPECT_EQ(query.threads, wish != nullptr && *wish != 0 ? std::atoi(wish) : 3);
  EXPECT_EQ(make_query(PointwiseDescription{}, PointwiseSizes{}, device, {.threads = 2}).threads, 2);
  device.isa = "amx";
  EXPECT_LE(make_query(PointwiseDescription{}, PointwiseSizes{}, device, {}).isa, best_isa());
  device.isa = "sse9";
  EXPECT_EQ(error_of([&] { PointwisePlan({}, {4}, device); }),
            "[device] isa: expected portable, avx2, avx512, avx512_bf16 or amx (for example avx2), got \"sse9\"");
  device.isa = "portable", device.cores = 0;
  EXPECT_EQ(error_of([&] { PointwisePlan({}, {4}, device); }), "[device] cores: expected 1 or more, got 0");
}

TEST(Status, IsReadThrownAndCleared_sanitize) {
  const HostTensor status(DType::i32, {1});
  const auto check = [&](std::uint32_t bits) {
    static_cast<std::uint32_t*>(status.view().data)[0] = bits;
    const std::string error = error_of([&] { check_status(status); });
    EXPECT_EQ(status.at(0), 0) << "cleared";
    return error;
  };
  EXPECT_EQ(check(0), "");
  EXPECT_EQ(check(status_lengths),
            "[check_status] expected no fault, got status 1: a length or start out of range, which was clamped");
  EXPECT_EQ(check(status_lengths | status_waited),
            "[check_status] expected no fault, got status 3: a length or start out of range, which was clamped; a wait between "
            "thread blocks that ran out, so that results are not valid");
  EXPECT_EQ(check(status_indices),
            "[check_status] expected no fault, got status 4: an index or a target out of range, which was left out");
  EXPECT_EQ(check(0x80000000U), "[check_status] expected no fault, got status 2147483648: bits that this version does not know");
  EXPECT_EQ(error_of([] { check_status({}); }), "[check_status] status: expected [1] i32 cpu, got not given");
  EXPECT_EQ(error_of([] { check_status(HostTensor(DType::u8, {1})); }),
            "[check_status] status: expected [1] i32 cpu, got [1] u8 cpu");
  EXPECT_EQ(error_of([&] { check_status(status, {.device = Device::cuda(0)}); }),
            "[check_status] stream: expected one of cpu, got one of cuda:0");
}

}  // namespace
}  // namespace everglow
