// Predictions of a CPU's rows: properties that hold for any costs, and cuts of the work that are those of the rows.
#include "plan/cpu.hpp"

#include <everglow/everglow.hpp>

#include "cpu/attention_support.hpp"
#include "gemm/gemm.hpp"
#include "plan/attention_shape.hpp"
#include "plan/devices.hpp"
#include "plan/linear.hpp"
#include "plan/recurrent.hpp"
#include "plan/recurrent_cpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace everglow {
namespace {

DeviceFigures estimated() {
  return plan::estimate_cpu(
      {.cores = 4, .f32_lanes = 16, .fused = true, .clock_ghz = 3, .l2_bytes = 1 << 20, .l3_bytes = 32 << 20});
}

/// A CPU whose costs were measured: any numbers will do.
DeviceFigures measured(unsigned seed) {
  std::mt19937 random(seed);
  const auto any = [&](double least, double most) { return std::uniform_real_distribution<>(least, most)(random); };
  DeviceFigures out = estimated();
  out.source = "measured";
  out.cpu = plan::estimate_costs(out, 16);
  out.cpu.speedup = any(1, 4), out.cpu.fork_us = any(0, 20);
  const auto change = [&](ProductCosts& costs) { costs = {any(0, 20), any(1e-3, 0.1), any(0, 1), any(0, 1), any(0, 1)}; };
  for (auto* all : {&out.cpu.library, &out.cpu.own})
    for (auto& passes : *all)
      for (ProductCosts& costs : passes) change(costs);
  for (ProductCosts& costs : out.cpu.step) change(costs);
  return out;
}

DeviceDescription described(const DeviceFigures& figures) {
  DeviceDescription out(Device::cpu());
  out.figures = figures;
  return out;
}

class Sizes {
 public:
  std::int64_t size(double most = 8) {
    return static_cast<std::int64_t>(std::exp(std::uniform_real_distribution<>(0, most)(random_)));
  }

 private:
  std::mt19937 random_{20261201};
};

TEST(CpuPlanner, MoreWorkNeverTakesLess) {
  Sizes sizes;
  for (unsigned seed = 0; seed < 20; ++seed)
    for (const bool library : {false, true}) {
      const DeviceFigures figures = seed == 0 ? estimated() : measured(seed);
      const plan::Machine machine = plan::machine_of(figures, {.dtype = seed % 2 == 0 ? DType::f32 : DType::bf16,
                                                               .threads = 1 + static_cast<int>(seed % 4),
                                                               .library = library,
                                                               .library_f32 = library});
      for (int i = 0; i < 30; ++i) {
        plan::Product p{sizes.size(), sizes.size(), sizes.size()};
        p.pass = static_cast<plan::Pass>(i % 3);
        const auto at = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
          plan::Product other = p;
          other.m += m, other.n += n, other.k += k;
          return plan::predict(machine, other).time_us;
        };
        EXPECT_LE(plan::floor_us(machine, p), at(0, 0, 0));
        for (const std::int64_t more : {1, 16, 1000}) {
          EXPECT_LE(at(0, 0, 0), at(more, 0, 0));
          EXPECT_LE(at(0, 0, 0), at(0, more, 0));
          EXPECT_LE(at(0, 0, 0), at(0, 0, more));
        }
      }
    }
}

TEST(CpuPlanner, PassesSumUpToTheTimeAboveTheFloor) {
  Sizes sizes;
  const auto check = [](const Explanation& e, std::size_t passes) {
    double sum = 0;
    for (const ExplanationPass& pass : e.passes) sum += pass.time_us;
    EXPECT_EQ(e.passes.size(), passes);
    EXPECT_NEAR(sum, e.time_us, 1e-9 * e.time_us) << e.layer;
    EXPECT_TRUE(std::isfinite(e.time_us));
    EXPECT_GE(e.time_us * (1 + 1e-9), e.floor_us) << e.layer << ' ' << e.kernel;
    EXPECT_EQ(e.figures, "measured");
  };
  for (unsigned seed = 1; seed < 60; ++seed) {
    const DeviceDescription cpu = described(measured(seed));
    const bool training = seed % 3 != 0;
    const DType dtype = static_cast<DType>(seed % 3);
    const PlanOptions options{.threads = 1 + static_cast<int>(seed % 3), .deterministic = seed % 5 == 0};
    const LinearDescription linear{.inputs = sizes.size(),
                                   .outputs = sizes.size(),
                                   .dtype = dtype,
                                   .activation = static_cast<Activation>(seed % 5),
                                   .training = training};
    check(LinearPlan(linear, {sizes.size()}, cpu, options).explain(), training ? 3 : 1);
    RecurrentDescription recurrent{.cell = static_cast<Cell>(seed % 5),
                                   .inputs = sizes.size(6),
                                   .hidden = sizes.size(7),
                                   .layers = 1 + seed % 3,
                                   .bidirectional = seed % 2 == 0};
    recurrent.dtype = dtype, recurrent.training = training;
    if (recurrent.cell == Cell::lstm) recurrent.projection = sizes.size(4);
    check(RecurrentPlan(recurrent, {sizes.size(4), sizes.size(5)}, cpu, options).explain(), training ? 2 : 1);
    const AttentionDescription attention{
        .heads = sizes.size(2), .head_dim = sizes.size(5), .causal = seed % 2 == 0, .dtype = dtype, .training = training};
    check(
        AttentionPlan(attention, {.batch = sizes.size(3), .queries = sizes.size(6), .keys = sizes.size(6)}, cpu, options).explain(),
        training ? 2 : 1);
  }
}

TEST(CpuPlanner, AdviceKeepsItsPromise) {
  Sizes sizes;
  for (unsigned seed = 1; seed < 40; ++seed) {
    const DeviceDescription cpu = described(measured(seed));
    LinearDescription d{.inputs = sizes.size(), .outputs = sizes.size(), .activation = static_cast<Activation>(seed % 5)};
    d.training = seed % 2 == 0;
    const std::int64_t batch = sizes.size();
    const Explanation before = LinearPlan(d, {batch}, cpu).explain();
    for (const ExplanationAdvice& advice : before.advice) {
      if (advice.kind != "size") continue;
      LinearDescription other = d;
      if (advice.dimension == "inputs") other.inputs = advice.to;
      if (advice.dimension == "outputs") other.outputs = advice.to;
      const std::int64_t rows = advice.dimension == "batch" ? advice.to : batch;
      const double after =
          LinearPlan(other, {rows}, cpu).explain().time_us * static_cast<double>(batch) / static_cast<double>(rows);
      EXPECT_NEAR(before.time_us / after, advice.gain, 1e-9 * advice.gain);
    }
  }
}

/// 2 threads as fast as measured, one thread by the speed-up slower and without waking others.
TEST(CpuPlanner, FewerThreadsTakeLonger) {
  CpuFigures core;
  core.threads = 4, core.speedup = 3, core.fork_us = 2;
  const ProductCosts costs{5, 1, 0.1, 0.2, 0.3};
  EXPECT_DOUBLE_EQ(plan::with_threads(core, costs, 4).multiply_ns, 1);
  const ProductCosts one = plan::with_threads(core, costs, 1);
  EXPECT_DOUBLE_EQ(one.multiply_ns, 3);
  EXPECT_DOUBLE_EQ(one.b_ns, 0.6);
  EXPECT_DOUBLE_EQ(one.call_us, 3);
  EXPECT_DOUBLE_EQ(plan::speedup_of(core, 2), 1 + 2.0 / 3);
  EXPECT_DOUBLE_EQ(plan::speedup_of(core, 9), 3);
}

/// Pairs of bf16 take half of the time where both operands are bf16, and no other product any less.
TEST(CpuPlanner, PairsOfBf16TakeHalfOfTheTime) {
  const DeviceFigures figures = estimated();
  const CpuFigures pairs = plan::estimate_costs(figures, 16, true), widened = plan::estimate_costs(figures, 16);
  for (const std::size_t dtype : {0, 1, 2}) {
    const double share = dtype == 2 ? 0.5 : 1;
    EXPECT_DOUBLE_EQ(pairs.own[dtype][0].multiply_ns, share * widened.own[dtype][0].multiply_ns);
    EXPECT_DOUBLE_EQ(pairs.step[dtype].multiply_ns, share * widened.step[dtype].multiply_ns);
    EXPECT_DOUBLE_EQ(pairs.attention[dtype][0].multiply_ns, (1 + share) / 2 * widened.attention[dtype][0].multiply_ns);
    EXPECT_DOUBLE_EQ(pairs.attention[dtype][1].multiply_ns, (3 + 2 * share) / 5 * widened.attention[dtype][1].multiply_ns);
    EXPECT_DOUBLE_EQ(pairs.few_queries_ns[dtype], widened.few_queries_ns[dtype]);
  }
  const plan::Machine with = plan::machine_of(figures, {.dtype = DType::bf16, .pairs = true});
  const plan::Machine without = plan::machine_of(figures, {.dtype = DType::bf16});
  EXPECT_EQ(with.mixed[0].multiply_ns, without.mixed[0].multiply_ns);
  const plan::CpuLoop loop;
  plan::LoopProduct of_h{64, 1024, 256}, of_gradients{64, 1024, 256, true};
  EXPECT_LT(plan::cpu_loop_product_us(loop, with, 0, of_h), 0.6 * plan::cpu_loop_product_us(loop, without, 0, of_h));
  EXPECT_EQ(plan::cpu_loop_product_us(loop, with, 0, of_gradients), plan::cpu_loop_product_us(loop, without, 0, of_gradients));
}

TEST(CpuPlanner, MeasuredCostsAreWhatIsPredicted) {
  DeviceFigures figures = measured(1);
  figures.cpu.threads = 2, figures.cpu.speedup = 2;
  figures.cpu.own[0][0] = {10, 0.01, 0.5, 0.25, 0.125};
  const LinearPlan plan({.inputs = 512, .outputs = 128}, {1000}, described(figures), {.threads = 2, .force = "cpu.linear"});
  // us: the call, 1000 x 512 x 128 multiply-adds, and the elements of x, W and y.
  const double expected = 10 + 0.01 * 65'536 + (0.5 * 512'000 + 0.25 * 65'536 + 0.125 * 128'000) / 1000;
  EXPECT_NEAR(plan.explain().gemms[0].time_us, expected, 1e-6 * expected);
}

TEST(CpuPlanner, TheCutsAreThoseOfTheRows) {
  for (const Isa isa : every_isa) {
    const auto& kernels = cpu::forward_kernels(isa);
    EXPECT_EQ(kernels.block_keys, plan::attention_keys);
    EXPECT_EQ(kernels.block_queries, plan::attention_vectors * kernels.lanes);
    EXPECT_EQ(kernels.most_blocks, plan::attention_blocks);
    EXPECT_EQ(kernels.row_queries, kernels.lanes / 2);
    // A panel of the micro-kernel is two vectors, which the planner takes the lanes of.
    const plan::Machine machine = plan::machine_of(estimated(), {.lanes = kernels.lanes});
    EXPECT_EQ(machine.tiles.front().m, 2 * kernels.lanes);
    EXPECT_EQ(packed_panel_columns(isa), 2 * kernels.lanes);
  }
}

TEST(CpuPlanner, ALoopIsSharedByRowsOrByUnits) {
  const DeviceFigures figures = estimated();
  const auto loop = [&](std::int64_t hidden, std::int64_t batch, bool both = false) {
    const RecurrentDescription d{.inputs = 8, .hidden = hidden, .bidirectional = both};
    return plan::cpu_loop(d, {50, batch}, plan::machine_of(figures, {.threads = 4}));
  };
  EXPECT_TRUE(loop(256, 64).by_rows);
  EXPECT_EQ(loop(256, 64).threads, 4);
  EXPECT_FALSE(loop(256, 63).by_rows);
  EXPECT_EQ(loop(256, 63).threads, 4);
  EXPECT_EQ(loop(256, 64, true).threads, 2);
  EXPECT_EQ(loop(8, 1).team, 1);  // too little work to share
  EXPECT_EQ(loop(8, 1, true).in_turn, 2);
}

TEST(CpuPlanner, AMatrixOutsideL2CostsMoreAStep) {
  const DeviceFigures figures = estimated();
  const auto step = [&](std::int64_t hidden) {
    const RecurrentDescription d{.inputs = 8, .hidden = hidden};
    const plan::Machine machine = plan::machine_of(figures, {.threads = 1});
    return plan::cpu_step(d, {50, 1}, machine, false).us() / static_cast<double>(hidden * hidden);
  };
  EXPECT_GT(step(1024), 1.2 * step(192));  // 16 MiB from L3, 576 KiB from L2
}

}  // namespace
}  // namespace everglow
