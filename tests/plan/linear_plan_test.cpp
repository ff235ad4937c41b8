// The planner of products: the figures of NVIDIA's guides to the digit, the measured H200 table, and properties that hold for every
// shape.
#include "plan/linear.hpp"

#include <everglow/everglow.hpp>

#include "plan/h200_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace everglow {
namespace {

LinearDescription layer(std::int64_t inputs, std::int64_t outputs, DType dtype = DType::f16) {
  return {.inputs = inputs, .outputs = outputs, .dtype = dtype, .training = true};
}

Explanation explained(const char* device, const LinearDescription& d, std::int64_t batch, const PlanOptions& options = {}) {
  return LinearPlan(d, {batch}, DeviceDescription::named(device), options).explain();
}

const ExplanationGemm& forward(const Explanation& e) { return e.gemms.front(); }

TEST(LinearPlanner, ArithmeticIntensityOfTheGuides) {
  EXPECT_NEAR(forward(explained("v100-16", layer(128, 8192), 8192)).arithmetic_intensity, 124.12, 0.005);
  EXPECT_NEAR(forward(explained("v100-16", layer(8192, 8192), 8192)).arithmetic_intensity, 2730.67, 0.005);
  EXPECT_NEAR(forward(explained("v100-16", layer(1024, 4096), 512)).arithmetic_intensity, 315.08, 0.005);
  EXPECT_NEAR(forward(explained("v100-16", layer(1024, 4096), 1)).arithmetic_intensity, 0.999, 0.0005);
  const auto bound = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return forward(explained("v100-16", layer(k, m), n)).bound;
  };
  EXPECT_EQ(bound(8192, 128, 8192), "memory");
  EXPECT_EQ(bound(8192, 8192, 8192), "math");
}

TEST(LinearPlanner, RidgesAndTheBatchThatLeavesTheMemoryRoof) {
  const auto ridge = [](const char* device, DType dtype = DType::f16) {
    return forward(explained(device, layer(64, 64, dtype), 64)).ridge;
  };
  EXPECT_NEAR(ridge("v100-16"), 138.9, 0.05);
  EXPECT_NEAR(ridge("a100-80"), 153, 0.5);
  EXPECT_NEAR(ridge("a100-40"), 201, 0.5);
  EXPECT_NEAR(ridge("h200", DType::bf16), 206, 0.5);
  const auto smallest = [](const char* device) {
    std::int64_t batch = 1;
    while (forward(explained(device, layer(4096, 4096), batch)).bound == "memory") ++batch;
    return batch;
  };
  // 4096 r / (4096 - 2 r), rounded up: 148.99, 165.4, 222.6, 229.2.
  EXPECT_EQ(smallest("v100-16"), 149);
  EXPECT_EQ(smallest("a100-80"), 166);
  EXPECT_EQ(smallest("a100-40"), 223);
  EXPECT_EQ(smallest("h200"), 230);
}

TEST(LinearPlanner, TilesOfTheGuides) {
  const PlanOptions square{.tile_m = 128, .tile_n = 128};
  EXPECT_EQ(forward(explained("a100-80", layer(512, 256), 256, square)).tiles, 4);
  EXPECT_EQ(forward(explained("a100-80", layer(512, 257), 256, square)).tiles, 6);
  EXPECT_EQ(forward(explained("a100-80", layer(4096, 27648), 128)).tiles, 108);
  for (std::int64_t batch = 136; batch <= 256; batch += 8) {
    const auto e = explained("a100-80", layer(4096, 27648), batch);
    EXPECT_EQ(forward(e).tiles, 216);
    EXPECT_EQ(forward(e).tile.m, 256);
    EXPECT_EQ(forward(e).tile.n, 128);
  }
  EXPECT_NEAR(forward(explained("a100-80", layer(4096, 27648), 136)).tile_efficiency, 0.531, 0.0005);
}

TEST(LinearPlanner, WavesOfTheGuides) {
  const PlanOptions large{.tile_m = 256, .tile_n = 128};
  const auto waves = [&](const char* device, std::int64_t m, std::int64_t n) {
    return forward(explained(device, layer(4096, m), n, large)).waves;
  };
  EXPECT_EQ(waves("a100-40", 2304, 1536), 1);
  EXPECT_EQ(waves("a100-40", 2304, 3072), 2);
  EXPECT_NEAR(waves("a100-40", 2304, 1544), 1.083, 0.0005);
  EXPECT_NEAR(forward(explained("a100-40", layer(4096, 2304), 1544, large)).wave_efficiency, 0.542, 0.0005);
  EXPECT_EQ(waves("v100-16", 4096, 5120), 8);
  EXPECT_NEAR(waves("v100-16", 4096, 4096), 6.40, 0.0005);
  EXPECT_NEAR(waves("v100-16", 4096, 2048), 3.20, 0.0005);
  EXPECT_NEAR(waves("h200", 4096, 5120), 4.85, 0.005);
  EXPECT_NEAR(waves("a100-80", 4096, 4096), 4.74, 0.005);
  EXPECT_NEAR(waves("b200", 4096, 5120), 4.32, 0.005);
}

double measured_us(const test::MeasuredLinear& row, int pass) {
  return 2e-6 * static_cast<double>(row.batch * row.inputs * row.outputs) / row.tflops[pass];
}

TEST(LinearPlanner, TheMeasuredTableOfAnH200) {
  std::vector<double> errors;
  for (const auto& row : test::h200_table) {
    if (!row.aligned) continue;
    const auto e = explained("h200", layer(row.inputs, row.outputs), row.batch);
    for (int pass = 0; pass < 3; ++pass)
      if (row.tflops[pass] > 0)
        errors.push_back(std::fabs(e.gemms[static_cast<std::size_t>(pass)].time_us / measured_us(row, pass) - 1));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 0.15);
  const auto slower = [](std::int64_t batch, LinearDescription odd, LinearDescription padded) {
    const auto a = explained("h200", odd, batch), b = explained("h200", padded, batch);
    for (std::size_t pass = 0; pass < 3; ++pass) EXPECT_GE(a.gemms[pass].time_us / b.gemms[pass].time_us, 2.5) << pass;
    return a.time_us / b.time_us;
  };
  EXPECT_GE(slower(5120, layer(1024, 33708), layer(1024, 33712)), 2.5);
  EXPECT_GE(slower(4096, layer(1023, 4097), layer(1024, 4104)), 2.5);
}

TEST(LinearPlanner, OperandsTransposesAndAlignment) {
  LinearDescription d = layer(1023, 4100);
  auto e = explained("h200", d, 512);
  EXPECT_TRUE(e.gemms[0].transpose_a && !e.gemms[0].transpose_b);
  EXPECT_TRUE(!e.gemms[1].transpose_a && !e.gemms[1].transpose_b);
  EXPECT_TRUE(!e.gemms[2].transpose_a && e.gemms[2].transpose_b);
  const auto& y = e.gemms[0].operands[2];
  EXPECT_EQ(y.tensor, "y");
  EXPECT_EQ(y.leading_bytes, 8200);
  EXPECT_EQ(y.alignment_bytes, 8);
  EXPECT_EQ(e.gemms[0].alignment_bytes, 2);
  d.layout = LinearLayout::inputs_outputs;
  e = explained("h200", d, 512);
  EXPECT_TRUE(!e.gemms[0].transpose_a && !e.gemms[0].transpose_b);
  EXPECT_EQ(e.gemms[0].operands[0].leading_bytes, 8200);
  EXPECT_TRUE(e.gemms[1].transpose_a);
  EXPECT_EQ(e.gemms[2].m, 4100);
  EXPECT_EQ(e.gemms[2].operands[0].tensor, "dy");
}

const ExplanationAdvice* find(const Explanation& e, std::string_view kind, std::string_view dimension) {
  for (const auto& advice : e.advice)
    if (advice.kind == kind && advice.dimension == dimension) return &advice;
  return nullptr;
}

TEST(LinearPlanner, AnOddVocabulary) {
  const auto e = explained("h200", layer(1024, 33708), 5120);
  ASSERT_FALSE(e.advice.empty());
  EXPECT_EQ(e.advice[0].kind, "size");
  EXPECT_EQ(e.advice[0].dimension, "outputs");
  EXPECT_EQ(e.advice[0].to, 33712);
  EXPECT_NEAR(e.advice[0].gain, 2.8, 0.1);
  EXPECT_EQ(e.advice[0].reason, "rows of y and dy are 67416 bytes apart, then multiples of 16 bytes");
  const auto* stride = find(e, "stride", "outputs");
  ASSERT_NE(stride, nullptr);
  EXPECT_EQ(stride->to, 33712);
  EXPECT_EQ(find(e, "size", "inputs"), nullptr);
}

TEST(LinearPlanner, ABatchIsNeverPaddedForAlignment) {
  EXPECT_EQ(find(explained("h200", layer(1024, 32768), 131071), "size", "batch"), nullptr);
  const auto e = explained("v100-16", layer(1024, 4096), 4096);  // 6.40 waves forward
  const auto* waves = find(e, "size", "batch");
  ASSERT_NE(waves, nullptr);
  EXPECT_EQ(waves->to, 4480);  // 7.00
}

class Shapes {
 public:
  LinearDescription next() {
    LinearDescription d = layer(size(), size());
    d.layout = random_() % 2 == 0 ? LinearLayout::outputs_inputs : LinearLayout::inputs_outputs;
    d.training = random_() % 4 != 0;
    return d;
  }
  std::int64_t size() { return static_cast<std::int64_t>(std::exp(std::uniform_real_distribution<>(0, 10)(random_))); }

 private:
  std::mt19937 random_{20261130};
};

TEST(LinearPlanner, MoreWorkNeverTakesLess) {
  Shapes shapes;
  for (const auto& name : device_names())
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const plan::Machine machine = plan::machine_of(DeviceDescription::named(name).figures, {.dtype = dtype});
      for (int i = 0; i < 50; ++i) {
        const plan::Product p{shapes.size(), shapes.size(), shapes.size()};
        const double time = plan::predict(machine, p).time_us;
        EXPECT_LE(plan::floor_us(machine, p), time);
        for (const std::int64_t more : {1, 7, 64, 1000}) {
          EXPECT_LE(time, plan::predict(machine, {p.m + more, p.n, p.k}).time_us) << name;
          EXPECT_LE(time, plan::predict(machine, {p.m, p.n + more, p.k}).time_us) << name;
          EXPECT_LE(time, plan::predict(machine, {p.m, p.n, p.k + more}).time_us) << name;
        }
      }
    }
}

/// The layer after an advice, dense strides.
struct Changed {
  LinearDescription description;
  std::int64_t batch;
};
Changed applied(LinearDescription d, std::int64_t batch, const ExplanationAdvice& advice) {
  if (advice.dimension == "inputs") d.inputs = advice.to;
  if (advice.dimension == "outputs") d.outputs = advice.to;
  return {d, advice.dimension == "batch" ? advice.to : batch};
}

TEST(LinearPlanner, EveryAdviceKeepsItsPromise) {
  Shapes shapes;
  int seen = 0;
  for (int i = 0; i < 300; ++i) {
    const auto names = device_names();
    const auto& name = names[static_cast<std::size_t>(i) % names.size()];
    const LinearDescription d = shapes.next();
    const std::int64_t batch = shapes.size();
    const auto before = explained(name.c_str(), d, batch);
    for (const auto& advice : before.advice) {
      ++seen;
      EXPECT_GE(advice.gain, 1.03);
      EXPECT_GT(advice.to, advice.from);
      EXPECT_NEAR(advice.time_us_before, before.time_us, 1e-9 * before.time_us);
      EXPECT_NEAR(advice.gain, advice.time_us_before / advice.time_us_after, 1e-9 * advice.gain);
      if (advice.kind == "size") {
        const Changed now = applied(d, batch, advice);
        const double rows = static_cast<double>(now.batch) / static_cast<double>(batch);
        EXPECT_NEAR(before.time_us * rows / explained(name.c_str(), now.description, now.batch).time_us, advice.gain,
                    1e-9 * advice.gain);
      } else {
        const plan::LinearStrides strides =
            advice.dimension == "inputs" ? plan::LinearStrides{advice.to, 0} : plan::LinearStrides{0, advice.to};
        const auto machine = plan::machine_of(DeviceDescription::named(name).figures, {.dtype = d.dtype});
        EXPECT_NEAR(plan::time_of(plan::linear_gemms(d, batch, machine, strides)), advice.time_us_after,
                    1e-9 * advice.time_us_after);
      }
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(LinearPlanner, EmptySizesTakeNoTime) {
  for (const auto& [inputs, outputs, batch] : {std::tuple<int, int, int>{0, 5, 3}, {5, 0, 3}, {5, 4, 0}, {0, 0, 0}}) {
    const auto e = explained("h200", layer(inputs, outputs), batch);
    EXPECT_EQ(e.gemms.size(), 3U);
    EXPECT_TRUE(std::isfinite(e.time_us) && std::isfinite(e.floor_us));
    for (const auto& advice : e.advice) EXPECT_TRUE(std::isfinite(advice.gain));
  }
}

}  // namespace
}  // namespace everglow
