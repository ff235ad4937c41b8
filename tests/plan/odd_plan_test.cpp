// Schemes of odd products: valid for every shape, and those that the measured layers want.
#include "plan/odd.hpp"

#include <gtest/gtest.h>

#include <random>

namespace everglow {
namespace {

using plan::choose_odd;
using plan::OddProduct;
using plan::OddScheme;

plan::Machine h200(DType dtype = DType::f16, Math math = Math::ieee) {
  return plan::machine_of(DeviceDescription::named("h200").figures, {.dtype = dtype, .math = math});
}

/// A product of f16 with room for everything. Alignments of a, b and c.
OddProduct roomy(OddProduct p, std::int64_t a, std::int64_t b, std::int64_t c) {
  p.a = {a, p.a.filled, true}, p.b = {b, p.b.filled, true}, p.c = {c, false, true};
  p.may_widen = true;
  return p;
}

std::string text_of(const OddScheme& s) {
  return std::to_string(s.m) + ' ' + std::to_string(s.n) + ' ' + std::to_string(s.k) + (s.stage_a ? " a" : "") +
         (s.stage_b ? " b" : "") + (s.stage_c ? " c" : "") + (s.widen ? " wide" : "") + (s.as_is ? " as it is" : "");
}

TEST(OddPlan, WholeProductsAreTakenAsTheyAre_sanitize) {
  const OddProduct p = roomy({.m = 4095, .n = 4096, .k = 1024}, 64, 64, 64);
  EXPECT_EQ(text_of(choose_odd(h200(), p)), "4095 4096 1024 as it is");  // no row has 4095 elements
  const OddProduct odd = roomy({.m = 4096, .n = 4097, .k = 1023}, 2, 2, 2);
  EXPECT_EQ(text_of(choose_odd(h200(DType::f32), odd)), "4096 4097 1023 as it is") << "no tensor cores, no rule";
  for (const OddProduct& none :
       {OddProduct{.m = 0, .n = 3, .k = 5}, OddProduct{.m = 3, .n = 0, .k = 5}, OddProduct{.m = 3, .n = 3}})
    EXPECT_TRUE(choose_odd(h200(), none).as_is);
  EXPECT_TRUE(choose_odd(h200(), roomy({.m = 3, .n = 5, .k = 7}, 2, 2, 2)).as_is) << "a launch costs more";
}

/// 4096 x 1023 x 4097 and 5120 x 1024 x 33708, rows on preferred strides and dense: forward, dx and dweight.
TEST(OddPlan, LayersThatWereMeasured) {
  const auto machine = h200();
  const auto forward = [&](std::int64_t b, std::int64_t i, std::int64_t o, std::int64_t ai, std::int64_t ao) {
    return text_of(choose_odd(machine, roomy({.m = b, .n = o, .k = i, .a_along_k = true, .b_along_n = false}, ai, ai, ao)));
  };
  const auto dx = [&](std::int64_t b, std::int64_t i, std::int64_t o, std::int64_t ai, std::int64_t ao) {
    return text_of(choose_odd(machine, roomy({.m = b, .n = i, .k = o, .a_along_k = true, .b_along_n = true}, ao, ai, ai)));
  };
  const auto dweight = [&](std::int64_t b, std::int64_t i, std::int64_t o, std::int64_t ai, std::int64_t ao) {
    return text_of(choose_odd(machine, roomy({.m = o, .n = i, .k = b, .a_along_k = false, .b_along_n = true}, ao, ai, ai)));
  };
  EXPECT_EQ(forward(4096, 1023, 4097, 64, 64), "4096 4096 1024 a b");
  EXPECT_EQ(forward(4096, 1023, 4097, 2, 2), "4096 4104 1024 a b c");
  EXPECT_EQ(dx(4096, 1023, 4097, 64, 64), "4096 1024 4096 b wide") << "dy is large and stays where it is";
  EXPECT_EQ(dx(4096, 1023, 4097, 2, 2), "4096 1024 4104 a b c");
  EXPECT_EQ(dweight(4096, 1023, 4097, 64, 64), "4096 1024 4096 b c");
  EXPECT_EQ(dweight(4096, 1023, 4097, 2, 2), "4104 1024 4096 a b c");
  EXPECT_EQ(forward(5120, 1024, 33708, 64, 64), "5120 33704 1024");
  EXPECT_EQ(forward(5120, 1024, 33708, 64, 8), "5120 33704 1024 c");
  EXPECT_EQ(dx(5120, 1024, 33708, 64, 64), "5120 1024 33704 wide");
  EXPECT_EQ(dx(5120, 1024, 33708, 64, 8), "5120 1024 33704 a wide");
  EXPECT_EQ(dweight(5120, 1024, 33708, 64, 64), "33704 1024 5120");
  EXPECT_EQ(dweight(5120, 1024, 33708, 64, 8), "33704 1024 5120 a");
}

/// What a scheme may be, of any product.
TEST(OddPlan, SchemesAreWithinTheirRules_sanitize) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int changed = 0;
  for (int i = 0; i < 3000; ++i) {
    const bool half = draw(0, 1) == 0;
    const auto machine = half ? h200(DType::bf16) : h200(DType::f32, Math::tf32);
    const std::int64_t unit = half ? 8 : 4;
    const auto size = [&] { return draw(0, 1) == 0 ? draw(1, 600) * unit : draw(1, 5000); };
    const auto operand = [&] { return plan::OddOperand{std::int64_t{2} << draw(half ? 0 : 1, 6), false, draw(0, 1) == 0}; };
    OddProduct p{.m = size(), .n = size(), .k = size()};
    p.a_along_k = draw(0, 1) == 0, p.b_along_n = draw(0, 1) == 0;
    p.c_element = machine.element;
    p.a = operand(), p.b = operand(), p.c = operand();
    if (draw(0, 3) == 0) p.a = {64, true, true};
    p.may_widen = draw(0, 1) == 0, p.accumulate = draw(0, 3) == 0, p.leaves_rows = draw(0, 1) == 0;
    const OddScheme s = choose_odd(machine, p);
    if (s.as_is) {
      EXPECT_TRUE(s.m == p.m && s.n == p.n && s.k == p.k && !s.stage_a && !s.stage_b && !s.stage_c && !s.widen);
      continue;
    }
    ++changed;
    SCOPED_TRACE(testing::Message() << p.m << ' ' << p.n << ' ' << p.k << ": " << text_of(s));
    EXPECT_TRUE((!s.stage_a || (p.a.may_stage && !p.a.filled)) && (!s.stage_b || p.b.may_stage) && (!s.stage_c || p.c.may_stage));
    EXPECT_TRUE(!s.widen || (p.may_widen && !p.accumulate && !s.stage_c));
    EXPECT_TRUE((s.stage_a || p.a.aligned()) && (s.stage_b || p.b.aligned()) && (s.stage_c || s.widen || p.c.aligned()));
    EXPECT_EQ(s.n % unit, 0);
    EXPECT_TRUE(p.a_along_k || s.m % unit == 0);
    EXPECT_TRUE((!p.a_along_k && p.b_along_n) || s.k % unit == 0);
    for (const auto& [got, given] : {std::pair{s.m, p.m}, {s.n, p.n}, {s.k, p.k}})
      EXPECT_TRUE(got > 0 && std::abs(got - given) < unit);
    const bool a_filled = s.stage_a || p.a.filled, room = s.stage_c || s.widen;
    EXPECT_TRUE(s.k <= p.k || (a_filled && s.stage_b)) << "zeros in one operand alone";
    EXPECT_TRUE(s.k >= p.k || s.widen) << "a rest of k is added to f32";
    EXPECT_TRUE(s.n <= p.n || (s.stage_b && room));
    EXPECT_TRUE(s.m <= p.m || (a_filled && room));
    EXPECT_TRUE(s.m >= p.m || p.leaves_rows);
  }
  EXPECT_GT(changed, 500);
}

}  // namespace
}  // namespace everglow
