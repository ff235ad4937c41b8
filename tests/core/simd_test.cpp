// The vector functions on every instruction set of this machine, against libm in double. Bounds are in u = 2^-24, relative to the
// exact value, from the roundings that the functions make; each test says which.
#include "core/isa/simd_functions.hpp"

#include "core/isa.hpp"
#include "support/tensor.hpp"

#include <everglow/tensor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace everglow {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
constexpr double u = 0x1p-24, smallest_normal = 0x1p-126;

class SimdFunctionsTest : public testing::TestWithParam<Isa> {
 protected:
  const SimdFunctions& functions() const {
    return select(GetParam(), portable::simd_functions, avx2::simd_functions, avx512::simd_functions);
  }
};

std::vector<Isa> machine_sets() {
  std::vector<Isa> out;
  for (const Isa isa : every_isa)
    if (isa <= best_isa()) out.push_back(isa);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Cpu, SimdFunctionsTest, testing::ValuesIn(machine_sets()),
                         [](const auto& info) { return std::string(name(info.param)) + "_sanitize"; });

/// Every 4099th float of both signs (a prime step: all exponents, subnormals, all low bits), 8 neighbours on each side of the
/// points where a function changes its formula, and random points where most arguments lie.
std::vector<float> arguments(std::initializer_list<float> thresholds) {
  std::vector<float> out{0.0F, -0.0F, 0x1p-149F, -0x1p-149F, 0x1p-126F, -0x1p-126F, 1, -1, 3.4028235e38F, -3.4028235e38F};
  for (std::uint32_t bits = 0; bits < 0x7F800000U; bits += 4099)
    for (const std::uint32_t sign : {0U, 0x80000000U}) out.push_back(std::bit_cast<float>(bits | sign));
  for (const float threshold : thresholds) {
    float low = threshold;
    for (int i = 0; i < 8; ++i) low = std::nextafter(low, -infinity);
    for (int i = 0; i < 17; ++i, low = std::nextafter(low, infinity)) out.push_back(low);
  }
  std::mt19937_64 random(test::seed());
  std::uniform_real_distribution<float> usual(-20, 20), wide(-90, 90), small(-0.7F, 0.7F);
  for (int i = 0; i < 100000; ++i) out.insert(out.end(), {usual(random), wide(random), small(random)});
  return out;
}

using Function = void (*)(const float*, float*, std::int64_t);

std::vector<float> applied(Function f, std::vector<float> x, int lanes) {
  const std::size_t n = x.size(), width = static_cast<std::size_t>(lanes);
  x.resize((n + width - 1) / width * width);
  std::vector<float> y(x.size());
  f(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  y.resize(n);
  return y;
}

/// Counts the arguments where |y - exact| > bound(x, exact) and describes the worst.
void expect_close(const std::vector<float>& x, const std::vector<float>& y, double (*exact)(double),
                  const std::function<double(double x, double exact)>& bound) {
  std::size_t outside = 0;
  double worst = 0;
  std::string text;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = exact(x[i]), allowed = bound(x[i], want), error = std::fabs(y[i] - want);
    if (error <= allowed || y[i] == want) continue;
    ++outside;
    if (!(error / allowed > worst) && !text.empty()) continue;
    worst = error / allowed;
    text = testing::PrintToString(x[i]) + " -> " + testing::PrintToString(y[i]) + ", expected " + testing::PrintToString(want);
  }
  EXPECT_EQ(outside, 0U) << "worst: " << text;
}

constexpr float lowest_exp = -87.33654F, highest_exp = 88.72283F;

/// 2 units in the last place. With |r| <= ln 2 / 2 the polynomial in r is below 0.42: the roundings of r, of its terms and of the
/// sum before the 1 are below 2^-25 absolutely, the last addition rounds by half a unit, the minimax error is below 2^-27, and
/// scaling by powers of two is exact. Nothing is rounded to a subnormal: what would be is 0.
TEST_P(SimdFunctionsTest, Exp) {
  const auto x = arguments({lowest_exp, highest_exp, 0, -0.34657359F, 0.34657359F});
  const auto y = applied(functions().exp, x, functions().lanes);
  expect_close(x, y, std::exp, [](double at, double exact) {
    if (at < static_cast<double>(lowest_exp)) return smallest_normal;
    if (at > static_cast<double>(highest_exp)) return static_cast<double>(infinity);  // looked at below
    return 2 * std::exp2(std::floor(std::log2(exact)) - 23);
  });
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(!(x[i] < lowest_exp) || y[i] == 0) << x[i];
    EXPECT_TRUE(!(x[i] > highest_exp) || y[i] == infinity) << x[i];
  }
}

/// 1 / (1 + e): e within 2 units in the last place (4 u), its part of the sum at most all of it; the sum and the quotient round by
/// u each. Results below the smallest normal number may be 0.
TEST_P(SimdFunctionsTest, Sigmoid) {
  const auto x = arguments({-lowest_exp, -highest_exp, lowest_exp, 0});
  const auto y = applied(functions().sigmoid, x, functions().lanes);
  expect_close(
      x, y, [](double at) { return 1 / (1 + std::exp(-at)); },
      [](double, double exact) { return 6.01 * u * exact + (exact < smallest_normal ? smallest_normal : 0); });
  for (const float value : y) EXPECT_TRUE(value >= 0 && value <= 1) << value;
}

/// Below 0.625: x + x z p(z) with |z p| <= 0.13, so the roundings of p and of the products (6 u of them) are below 0.8 u, Cephes'
/// minimax error is below 0.5 u, the sum rounds by u: 3 u. Above it, 1 - q with q = 2 / (e^2|x| + 1) <= 0.4455 within 6 u (as the
/// sigmoid): q / (1 - q) · 6 u + u <= 5.9 u.
TEST_P(SimdFunctionsTest, Tanh) {
  const auto x = arguments({-0.625F, 0.625F, 0, 44.36F, -44.36F});
  const auto y = applied(functions().tanh, x, functions().lanes);
  expect_close(x, y, std::tanh,
               [](double at, double exact) { return (std::fabs(at) < 0.625 ? 3 : 5.9) * u * std::fabs(exact) + 0x1p-149; });
  for (const float value : y) EXPECT_TRUE(value >= -1 && value <= 1) << value;
}

TEST_P(SimdFunctionsTest, LimitsAndNaN) {
  const int lanes = functions().lanes;
  const std::vector<float> x{infinity, -infinity, nan, -nan};
  const auto e = applied(functions().exp, x, lanes), s = applied(functions().sigmoid, x, lanes);
  const auto t = applied(functions().tanh, x, lanes);
  EXPECT_TRUE(e[0] == infinity && e[1] == 0 && std::isnan(e[2]) && std::isnan(e[3]));
  EXPECT_TRUE(s[0] == 1 && s[1] == 0 && std::isnan(s[2]) && std::isnan(s[3]));
  EXPECT_TRUE(t[0] == 1 && t[1] == -1 && std::isnan(t[2]) && std::isnan(t[3]));
}

/// A NaN in one lane stays there.
TEST_P(SimdFunctionsTest, LanesAreApart) {
  const auto lanes = static_cast<std::size_t>(functions().lanes);
  for (const Function f : {functions().exp, functions().sigmoid, functions().tanh}) {
    const float ordinary = applied(f, std::vector<float>(lanes, 0.75F), functions().lanes)[0];
    for (std::size_t odd = 0; odd < lanes; ++odd) {
      std::vector<float> x(lanes, 0.75F);
      x[odd] = nan;
      const auto y = applied(f, x, functions().lanes);
      for (std::size_t i = 0; i < lanes; ++i) EXPECT_TRUE(i == odd ? std::isnan(y[i]) : y[i] == ordinary) << i << ' ' << odd;
    }
  }
}

/// The memory has exactly n elements, so that the sanitizers see a read or a write past them.
TEST_P(SimdFunctionsTest, PartsOfVectors) {
  const int lanes = functions().lanes;
  for (int n = 0; n < lanes; ++n) {
    std::vector<float> part(static_cast<std::size_t>(n)), whole(static_cast<std::size_t>(lanes), nan);
    for (int i = 0; i < n; ++i) part[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
    for (const float filler : {0.0F, -infinity, 7.5F}) {
      functions().load_part(part.data(), n, filler, whole.data());
      for (int i = 0; i < lanes; ++i) EXPECT_EQ(whole[static_cast<std::size_t>(i)], i < n ? static_cast<float>(i + 1) : filler);
    }
    for (int i = 0; i < lanes; ++i) whole[static_cast<std::size_t>(i)] = static_cast<float>(10 * i);
    functions().store_part(part.data(), whole.data(), n);
    std::vector<float> longer(static_cast<std::size_t>(lanes), -5.0F);
    functions().store_part(longer.data(), whole.data(), n);
    for (int i = 0; i < lanes; ++i) {
      EXPECT_TRUE(i >= n || part[static_cast<std::size_t>(i)] == static_cast<float>(10 * i)) << i << " of " << n;
      EXPECT_EQ(longer[static_cast<std::size_t>(i)], i < n ? static_cast<float>(10 * i) : -5.0F);
    }
  }
}

/// All patterns, and floats that are ties, neighbours of ties, too large or too small: the vector conversions are the scalar ones,
/// which tests/core/dtype_test.cpp holds against the definition of the formats. NaN stays NaN with its sign.
template <class Short, class Round>
void expect_same_conversions(const SimdStorage<Short>& storage, int lanes, const Round& round) {
  std::vector<Short> patterns(65536), back(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(patterns.size());
  storage.widen(patterns.data(), wide.data(), 65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const float expected = to_float(patterns[i]);
    ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << i;
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(wide[i]) : wide[i] == expected) << i << ": " << wide[i];
  }
  std::vector<float> values = arguments({65504, 65519.996F, 65520, 0x1p-14F, 0x1p-24F, 0x1p-25F, 3.3895314e38F});
  for (const float value : wide)
    for (const float next : {std::nextafter(value, infinity), value, std::nextafter(value, -infinity)}) values.push_back(next);
  for (std::size_t i = 0; i + 1 < wide.size(); ++i) {
    const float middle = static_cast<float>((static_cast<double>(wide[i]) + static_cast<double>(wide[i + 1])) / 2);
    values.insert(values.end(), {middle, std::nextafter(middle, infinity), std::nextafter(middle, -infinity)});
  }
  values.resize(values.size() / static_cast<std::size_t>(lanes) * static_cast<std::size_t>(lanes));
  back.resize(values.size());
  storage.round(values.data(), back.data(), static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(to_float(back[i])) && std::signbit(to_float(back[i])) == std::signbit(values[i])) << i;
    } else {
      ASSERT_EQ(back[i].bits, round(values[i]).bits) << values[i];
    }
  }
}

TEST_P(SimdFunctionsTest, StorageOf16Bits) {
  expect_same_conversions(functions().half, functions().lanes, to_half);
  expect_same_conversions(functions().bfloat16, functions().lanes, to_bfloat16);
}

/// The memory has exactly n elements, so that the sanitizers see a read or a write past them.
template <class Short, class Round>
void expect_parts(const SimdStorage<Short>& storage, int lanes, const Round& round) {
  for (int n = 0; n < lanes; ++n) {
    std::vector<Short> part(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) part[static_cast<std::size_t>(i)] = round(static_cast<float>(i) + 0.5F);
    std::vector<float> whole(static_cast<std::size_t>(lanes), nan);
    storage.widen_part(part.data(), n, -infinity, whole.data());
    for (int i = 0; i < lanes; ++i)
      EXPECT_EQ(whole[static_cast<std::size_t>(i)], i < n ? static_cast<float>(i) + 0.5F : -infinity) << i << " of " << n;
    for (float& value : whole) value = 3;
    std::vector<Short> longer(static_cast<std::size_t>(lanes), round(-5));
    storage.round_part(part.data(), whole.data(), n);
    storage.round_part(longer.data(), whole.data(), n);
    for (const Short value : part) EXPECT_EQ(to_float(value), 3);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(to_float(longer[static_cast<std::size_t>(i)]), i < n ? 3.0F : -5.0F);
  }
}

TEST_P(SimdFunctionsTest, PartsOfVectorsOf16Bits) {
  expect_parts(functions().half, functions().lanes, to_half);
  expect_parts(functions().bfloat16, functions().lanes, to_bfloat16);
}

/// Sums of whole numbers are exact in any order; any other sum is within (lanes - 1) u of the sum of magnitudes.
TEST_P(SimdFunctionsTest, AcrossLanes) {
  const auto lanes = static_cast<std::size_t>(functions().lanes);
  std::mt19937_64 random(test::seed());
  std::uniform_real_distribution<float> any(-3, 3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(lanes), whole(lanes);
    double sum = 0, magnitude = 0, whole_sum = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
      x[i] = any(random), whole[i] = std::nearbyint(any(random) * 1000);
      sum += x[i], magnitude += std::fabs(x[i]), whole_sum += whole[i];
    }
    EXPECT_NEAR(functions().sum_lanes(x.data()), sum, static_cast<double>(lanes - 1) * u * magnitude);
    EXPECT_EQ(functions().sum_lanes(whole.data()), whole_sum);
    EXPECT_EQ(functions().max_lanes(x.data()), *std::max_element(x.begin(), x.end()));
  }
  for (std::size_t at = 0; at < lanes; ++at) {
    std::vector<float> x(lanes, -infinity);
    EXPECT_EQ(functions().max_lanes(x.data()), -infinity);
    x[at] = -4;
    EXPECT_EQ(functions().max_lanes(x.data()), -4) << at;
    std::fill(x.begin(), x.end(), 1.0F);
    x[at] = infinity;
    EXPECT_EQ(functions().sum_lanes(x.data()), infinity) << at;
  }
}

}  // namespace
}  // namespace everglow
