// Softmax beside its cases: what NaN, infinities and masks give, the same bits, gradients as differences.
#include "support/tensor.hpp"

#include <everglow/softmax.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

using test::HostTensor;

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

/// One row of 40 columns, all 0.5 but some: what comes out, on every row of the table.
void expect_row(const SoftmaxDescription& d, const std::vector<std::pair<int, double>>& some, double expected_first,
                const char* what) {
  SCOPED_TRACE(what + (' ' + std::string(name(d.dtype))));
  for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    HostTensor x(d.dtype, {1, 40}), y(d.dtype, {1, 40});
    x.fill(0.5);
    for (const auto& [column, value] : some) {
      if (column < 0)
        x.fill(value);
      else
        x.put(column, value);
    }
    const SoftmaxPlan plan(d, {1, 40}, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    plan.forward({x, y}, {scratch.data(), scratch.bytes()});
    for (int i = 0; i < 40; ++i) {
      if (std::isnan(expected_first))
        EXPECT_TRUE(std::isnan(y.at(i))) << i;
      else
        EXPECT_EQ(y.at(i), expected_first) << i;
    }
  }
}

TEST(Softmax, RowsWithNanAndInfinities_sanitize) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const SoftmaxDescription plain{.dtype = dtype}, zero{.dtype = dtype, .masked_row = MaskedRow::zero},
        log{.dtype = dtype, .log = true}, log_zero{.dtype = dtype, .log = true, .masked_row = MaskedRow::zero};
    for (const auto& d : {plain, zero, log, log_zero}) {
      expect_row(d, {{7, infinity}}, nan, "one +inf");
      expect_row(d, {{39, infinity}, {3, infinity}}, nan, "two +inf");
      for (const int column : {0, 17, 39}) {
        expect_row(d, {{column, nan}}, nan, "a NaN");
        expect_row(d, {{-1, -infinity}, {column, nan}}, nan, "a NaN among -inf");
        expect_row(d, {{column, nan}, {20, infinity}}, nan, "a NaN and +inf");
      }
    }
    expect_row(plain, {{-1, -infinity}}, nan, "all -inf");
    expect_row(log, {{-1, -infinity}}, nan, "all -inf, log");
    expect_row(zero, {{-1, -infinity}}, 0, "all -inf, zero");
    expect_row(log_zero, {{-1, -infinity}}, -infinity, "all -inf, log, zero");
    HostTensor share(dtype, {1});
    share.fill(1.0 / 40);
    expect_row(plain, {{-1, dtype == DType::f16 ? 65504 : 3e38}}, share.at(0), "the largest numbers");
  }
}

/// -inf beside numbers is a mask: 0 in its place, the others as if it were absent; in the first vector, or all of it.
TEST(Softmax, MaskedColumnsAreZero_sanitize) {
  for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    HostTensor x(DType::f32, {1, 70}), y(DType::f32, {1, 70});
    x.fill(-infinity);
    for (int i = 64; i < 68; ++i) x.put(i, 2);
    const SoftmaxPlan plan({}, {1, 70}, Device::cpu(), {.force = row});
    plan.forward({x, y}, {});
    for (int i = 0; i < 70; ++i) EXPECT_EQ(y.at(i), i >= 64 && i < 68 ? 0.25 : 0) << i;
  }
}

/// The same bits for any thread count, in place, and for few long rows that threads share.
TEST(Softmax, ThreadsAndPlaceDoNotChangeBits_sanitize) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t rows : {1, 2, 5})
      for (const std::int64_t columns : {40, 40000}) {
        HostTensor x(dtype, {rows, columns}), dy(dtype, {rows, columns});
        x.uniform(1, -8, 8), dy.uniform(2, -1, 1);
        for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
          std::vector<double> first_y, first_dx;
          for (const int threads : {1, 2, 3}) {
            const SoftmaxPlan plan({.dtype = dtype}, {rows, columns}, Device::cpu(),
                                   {.threads = threads, .force = row, .deterministic = true});
            const test::Scratch scratch(plan.workspace_bytes());
            HostTensor y(dtype, {rows, columns}), dx(dtype, {rows, columns});
            y.set(x.values()), dx.set(dy.values());
            plan.forward({y, y}, {scratch.data(), scratch.bytes()});
            plan.backward({y, dx, dx}, {scratch.data(), scratch.bytes()});
            if (threads == 1) first_y = y.values(), first_dx = dx.values();
            EXPECT_EQ(first_y, y.values()) << row << ' ' << threads;
            EXPECT_EQ(first_dx, dx.values()) << row << ' ' << threads;
            EXPECT_TRUE(scratch.guards_intact());
          }
        }
      }
}

/// A row alone has the bits that it has among others, whether threads take whole rows or share them.
TEST(Softmax, RowsDoNotDependOnTheRest_sanitize) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t columns : {70, 40000}) {
      HostTensor x(dtype, {9, columns}), dy(dtype, {9, columns});
      x.uniform(1, -8, 8), dy.uniform(2, -1, 1);
      const SoftmaxPlan plan({.dtype = dtype}, {9, columns}, Device::cpu(),
                             {.threads = 3, .force = "cpu.softmax_online", .deterministic = true});
      const test::Scratch scratch(plan.workspace_bytes());
      const auto run = [&](std::int64_t first, std::int64_t rows) {
        HostTensor y(dtype, {rows, columns}), dx(dtype, {rows, columns});
        plan.forward({x.view().narrow(0, first, rows), y}, {scratch.data(), scratch.bytes()});
        plan.backward({y, dy.view().narrow(0, first, rows), dx}, {scratch.data(), scratch.bytes()});
        return std::pair{y.values(), dx.values()};
      };
      const auto [y, dx] = run(0, 9);
      for (const std::int64_t first : {0, 4, 8}) {
        const auto [y_alone, dx_alone] = run(first, 1);
        EXPECT_TRUE(std::equal(y_alone.begin(), y_alone.end(), y.begin() + first * columns)) << first;
        EXPECT_TRUE(std::equal(dx_alone.begin(), dx_alone.end(), dx.begin() + first * columns)) << first;
      }
    }
}

/// Gradients of the reference are central differences (h = 1e-5: h² and 2^-53 / h are far below the bound).
TEST(Softmax, GradientsOfTheReferenceAreDifferences_sanitize) {
  for (const bool log : {false, true}) {
    const SoftmaxPlan plan({.dtype = DType::f64, .log = log}, {2, 6}, Device::cpu(), {.force = "reference.softmax"});
    HostTensor x(DType::f64, {2, 6}), y(DType::f64, {2, 6}), dy(DType::f64, {2, 6}), dx(DType::f64, {2, 6});
    x.uniform(1, -2, 2), dy.uniform(2, -1, 1);
    const auto loss = [&] {
      plan.forward({x, y}, {});
      double sum = 0;
      for (int i = 0; i < 12; ++i) sum += y.at(i) * dy.at(i);
      return sum;
    };
    loss();
    plan.backward({y, dy, dx}, {});
    for (int i = 0; i < 12; ++i) {
      const double kept = x.at(i), h = 1e-5;
      x.put(i, kept + h);
      const double above = loss();
      x.put(i, kept - h);
      const double below = loss();
      x.put(i, kept);
      EXPECT_NEAR(dx.at(i), (above - below) / (2 * h), 1e-8) << i;
    }
  }
}

/// Where all columns are equal, y = 1/n and log y = -log n; a constant gradient c then vanishes, c/n - n c/n² and c - n c/n. It
/// does so on rows of several segments, whole or shared by threads, within the roundings of n terms: 2 (n + 16) u of c/n or c, and
/// those of y to a storage type of 16 bits.
TEST(Softmax, AConstantGradientVanishes_sanitize) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t n : {7, 100, 40000})
      for (const bool log : {false, true})
        for (const int threads : {1, 3})
          for (const auto& row : kernels("softmax", DeviceKind::cpu)) {
            const SoftmaxPlan plan({.dtype = dtype, .log = log}, {1, n}, Device::cpu(), {.threads = threads, .force = row});
            const test::Scratch scratch(plan.workspace_bytes());
            HostTensor x(dtype, {1, n}), y(dtype, {1, n}), dy(dtype, {1, n}), dx(dtype, {1, n});
            x.fill(0.5), dy.fill(3);
            plan.forward({x, y}, {scratch.data(), scratch.bytes()});
            plan.backward({y, dy, dx}, {scratch.data(), scratch.bytes()});
            const auto terms = static_cast<double>(n);
            const double of_y = dtype == DType::f32 ? 0 : 2 * test::unit_roundoff(dtype) * (log ? std::log(terms) : 1);
            const double least = dtype == DType::f16 ? 0x1p-25 : 0;  // where f16's spacing stops to shrink
            const double bound =
                (log ? 3 : 3 / terms) * (2 * (terms + 16) * 0x1p-24 + of_y + (log ? 0 : 2 * terms * least)) + least;
            EXPECT_EQ("", test::compare(dx.values(), std::vector<double>(static_cast<std::size_t>(n), 0.0), bound))
                << row << ' ' << n << ' ' << name(dtype);
          }
}

TEST(Softmax, WrongShapeNamesArgumentExpectedAndActual) {
  const SoftmaxPlan plan({}, {4, 8});
  HostTensor x(DType::f32, {4, 7}), y(DType::f32, {4, 8});
  try {
    plan.forward({x, y}, {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "[softmax.forward] x: expected [any, 8] f32 cpu, got [4, 7] f32 cpu");
  }
}

}  // namespace
}  // namespace everglow
