// Conversions of f16 and bf16 over all patterns, and names of element types and devices.
#include "ops/small_layers.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The value of a pattern by the definition of the format.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const auto mantissa = static_cast<double>(bits & ((1U << mantissa_bits) - 1));
  const double one = std::ldexp(1.0, mantissa_bits);
  double magnitude = exponent == 0 ? std::ldexp(mantissa / one, 1 - bias) : std::ldexp(1 + mantissa / one, exponent - bias);
  if (exponent == (1 << exponent_bits) - 1) magnitude = mantissa == 0 ? infinity : std::nan("");
  return (bits >> (exponent_bits + mantissa_bits)) != 0 ? -magnitude : magnitude;
}

TEST(DType, EveryHalfReadsByItsDefinitionAndComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const double expected = value_of(bits, 5, 10);
    const float value = to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(to_half(value).bits, bits | 0x200U);  // NaN stays NaN, quiet, with its sign and the rest of its bits
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000U);
    ASSERT_EQ(to_half(value).bits, bits);
  }
}

TEST(DType, EveryBFloat16ReadsByItsDefinitionAndComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    const double expected = value_of(bits, 8, 7);
    const float value = to_float(brain);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(to_bfloat16(value).bits, bits | 0x40U);
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000U);
    ASSERT_EQ(to_bfloat16(value).bits, bits);
  }
}

/// Between each pair of neighbours the midpoint goes to the even pattern, and a step of f32 to either side to the nearer one.
template <class Convert>
void expect_nearest_even(std::uint32_t largest_finite, const Convert& convert, float (*read)(std::uint16_t)) {
  for (std::uint32_t bits = 0; bits < largest_finite; ++bits) {
    const float low = read(static_cast<std::uint16_t>(bits)), high = read(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);  // exact: one bit more
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t mark = sign < 0 ? 0x8000U : 0;
      ASSERT_EQ(convert(sign * middle), mark | (bits % 2 == 0 ? bits : bits + 1)) << bits;
      ASSERT_EQ(convert(sign * std::nextafterf(middle, 0)), mark | bits) << bits;
      ASSERT_EQ(convert(sign * std::nextafterf(middle, infinity)), mark | (bits + 1)) << bits;
    }
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  expect_nearest_even(
      0x7bffU, [](float value) -> std::uint32_t { return to_half(value).bits; },
      [](std::uint16_t bits) { return to_float(Half{bits}); });
  EXPECT_EQ(to_half(65519.996F).bits, 0x7bffU);  // the last below the midpoint of 65504 and 65536
  EXPECT_EQ(to_half(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(to_half(-infinity).bits, 0xfc00U);
  EXPECT_EQ(to_half(1e-30F).bits, 0U);
}

TEST(DType, BFloat16RoundsToNearestEven) {
  expect_nearest_even(
      0x7f7fU, [](float value) -> std::uint32_t { return to_bfloat16(value).bits; },
      [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80U);
  EXPECT_EQ(to_bfloat16(-infinity).bits, 0xff80U);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001U)))));  // a NaN whose high bits are infinity's
}

TEST(DType, NamesAndSizes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8})
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  EXPECT_EQ(parse_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_dtype("half"), DType::f16);
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(size_of(DType::f64), 8U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::u8), 1U);
  EXPECT_EQ(test::error_of([] { parse_dtype("fp8"); }),
            "[dtype] expected f32, f16, bf16, f64, i32, i64 or u8 (for example f32), got \"fp8\"");
}

TEST(Device, NamesComeBack) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:3"), Device::cuda(3));
  EXPECT_EQ(to_string(Device::cuda(12)), "cuda:12");
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  for (const char* bad : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "CPU"})
    EXPECT_EQ(test::error_of([&] { parse_device(bad); }),
              "[device] expected cpu or cuda:N (for example cuda:0), got \"" + std::string(bad) + "\"");
  EXPECT_EQ(DeviceDescription::named("cpu").name, "cpu");
  EXPECT_EQ(test::error_of([] { DeviceDescription::named("abacus"); }).substr(0, 9), "[device] ");
}

}  // namespace
}  // namespace everglow
