// Residency, the cost of a step, other libraries' rules, and attention's algorithms.
#include <everglow/everglow.hpp>

#include "plan/attention.hpp"
#include "plan/recurrent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace everglow {
namespace {

RecurrentDescription lstm(std::int64_t hidden, DType dtype = DType::f16) {
  return {.inputs = hidden, .hidden = hidden, .dtype = dtype, .training = true};
}

/// Of a vendor's library, in a build with CUDA too.
Explanation explained(const char* device, const RecurrentDescription& d, const RecurrentSizes& sizes = {256, 64}) {
  return RecurrentPlan(d, sizes, DeviceDescription::named(device), {.exclude = kernels("recurrent", DeviceKind::cuda)}).explain();
}

const ExplanationPeer& peer(const Explanation& e, std::string_view name) {
  return *std::find_if(e.peers.begin(), e.peers.end(), [&](const auto& p) { return p.name == name; });
}

/// NVIDIA's recurrent layers guide, "Persistence With GNMT": V100, FP16, 256 steps, mini-batch 64.
TEST(RecurrentPlanner, TheClassicalCase) {
  for (const std::int64_t hidden : {128, 256, 512, 768, 1024}) {
    const auto e = explained("v100-16", lstm(hidden));
    EXPECT_TRUE(peer(e, "cudnn_persist_static").eligible) << hidden;
    EXPECT_TRUE(e.residency->resident) << hidden;
    EXPECT_FALSE(peer(explained("v100-16", lstm(hidden, DType::f32)), "cudnn_persist_static").eligible) << hidden;
  }
  EXPECT_EQ(explained("v100-16", lstm(1024)).residency->largest_hidden, 1024);
  EXPECT_FALSE(explained("v100-16", lstm(1024, DType::f32)).residency->resident);
  for (const std::int64_t hidden : {1152, 2048}) {
    const auto e = explained("v100-16", lstm(hidden));
    EXPECT_FALSE(peer(e, "cudnn_persist_static").eligible);
    EXPECT_FALSE(e.residency->resident);
  }
}

TEST(RecurrentPlanner, LargestSizesOfAnH200) {
  const auto largest = [](Cell cell) {
    RecurrentDescription d = lstm(512, DType::bf16);
    d.cell = cell;
    return explained("h200", d).residency->largest_hidden;
  };
  EXPECT_EQ(largest(Cell::lstm), 2048);
  EXPECT_GE(largest(Cell::gru), 2304);
  EXPECT_EQ(largest(Cell::tanh), 4096);
  for (const std::int64_t hidden : {2048, 2112}) {
    const auto e = explained("h200", lstm(hidden, DType::bf16));
    EXPECT_EQ(e.residency->resident, hidden <= 2048);
    EXPECT_EQ(e.residency->where.empty(), hidden > 2048);
  }
}

TEST(RecurrentPlanner, PartitionsAreWithinTheirDevice) {
  std::mt19937 random(5);
  const auto size = [&](double most) {
    return static_cast<std::int64_t>(std::exp(std::uniform_real_distribution<>(0, most)(random)));
  };
  for (int i = 0; i < 200; ++i) {
    const auto names = device_names();
    const auto& name = names[static_cast<std::size_t>(i) % names.size()];
    RecurrentDescription d = lstm(size(8.5));
    d.inputs = size(8);
    d.cell = static_cast<Cell>(i % 5);
    d.layers = 1 + i % 3;
    d.bidirectional = i % 7 == 0;
    if (d.cell == Cell::lstm && i % 2 == 0) d.projection = size(7);
    const auto e = explained(name.c_str(), d, {size(6), size(7)});
    const ExplanationResidency& r = *e.residency;
    const DeviceFigures figures = DeviceDescription::named(name).figures;
    EXPECT_EQ(r.resident, !r.where.empty());
    if (r.resident) {
      EXPECT_GE(r.blocks * r.units_per_block, d.hidden);
      EXPECT_LE(r.blocks * r.groups * d.directions(), figures.units);
      EXPECT_LE(r.bytes / r.blocks, figures.shared_bytes + figures.register_bytes);
    }
    EXPECT_NEAR(r.step_us, r.hand_off_us + r.broadcast_us + r.arithmetic_us, 1e-9 * r.step_us);
    EXPECT_LE(r.step_floor_us, r.step_us);
    EXPECT_LE(e.floor_us, e.time_us) << name << ' ' << d.hidden;
    for (const auto& advice : e.advice) {
      RecurrentDescription other = d;
      if (advice.dimension == "hidden") other.hidden = advice.to;
      if (advice.dimension == "inputs") other.inputs = advice.to;
      if (advice.dimension == "batch") continue;
      const RecurrentSizes sizes{e.gemms[1].count, e.gemms[1].n};
      EXPECT_NEAR(e.time_us / explained(name.c_str(), other, sizes).time_us, advice.gain, 1e-6 * advice.gain);
    }
  }
}

/// us a step of the best cuDNN algorithm on an H200, T 256, inputs = hidden, input product included.
struct MeasuredStep {
  DType dtype;
  std::int64_t hidden, batch;
  double forward, training;
};
constexpr MeasuredStep steps[] = {
    {DType::f16, 256, 16, 1.42, 5.41},     {DType::f16, 256, 64, 6.69, 17.93},    {DType::f16, 512, 16, 1.52, 5.82},
    {DType::f16, 512, 64, 6.67, 18.63},    {DType::f16, 1024, 16, 2.23, 7.83},    {DType::f16, 1024, 64, 8.27, 22.17},
    {DType::f16, 2048, 16, 12.77, 30.02},  {DType::f16, 2048, 64, 17.50, 43.50},  {DType::bf16, 256, 16, 12.33, 24.91},
    {DType::bf16, 256, 64, 12.53, 25.29},  {DType::bf16, 512, 16, 12.41, 26.19},  {DType::bf16, 512, 64, 12.79, 27.19},
    {DType::bf16, 1024, 16, 12.31, 28.27}, {DType::bf16, 1024, 64, 12.23, 30.41}, {DType::bf16, 2048, 16, 12.80, 30.57},
    {DType::bf16, 2048, 64, 17.46, 43.58}};

TEST(RecurrentPlanner, TheMeasuredStepsOfCudnn) {
  std::vector<double> errors;
  for (const auto& row : steps) {
    RecurrentDescription d = lstm(row.hidden, row.dtype);
    errors.push_back(std::fabs(explained("h200", d, {256, row.batch}).time_us / 256 / row.training - 1));
    d.training = false;
    errors.push_back(std::fabs(explained("h200", d, {256, row.batch}).time_us / 256 / row.forward - 1));
    // Past residency the host or the product bounds a step, whichever takes longer.
    if (row.hidden != 2048) continue;
    EXPECT_LE(errors[errors.size() - 2], 0.15) << row.batch;
    EXPECT_LE(errors.back(), 0.15) << row.batch;
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 0.15);
}

TEST(RecurrentPlanner, WhatPyTorchPicks) {
  const auto reason = [](const char* device, const RecurrentDescription& d, const RecurrentSizes& sizes) {
    return peer(explained(device, d, sizes), "pytorch").reason;
  };
  EXPECT_NE(reason("v100-16", lstm(1024), {256, 64}).find("PERSIST_STATIC:"), std::string::npos);
  EXPECT_NE(reason("v100-16", lstm(1024), {256, 80}).find("STANDARD: batch 80"), std::string::npos);
  EXPECT_NE(reason("v100-16", lstm(1024), {5, 64}).find("STANDARD: batch 64 with 5 steps"), std::string::npos);
  EXPECT_NE(reason("h200", lstm(1024), {256, 128}).find("PERSIST_STATIC:"), std::string::npos);
  EXPECT_NE(reason("h200", lstm(1024), {256, 136}).find("STANDARD: batch 136"), std::string::npos);
  EXPECT_NE(reason("h200", lstm(1024, DType::bf16), {256, 64}).find("STANDARD: the dtype is bf16"), std::string::npos);
  EXPECT_NE(reason("t4", lstm(1024), {256, 64}).find("sm_75"), std::string::npos);
  EXPECT_NE(reason("l4", lstm(1024), {256, 64}).find("58 SMs < 98"), std::string::npos);
  EXPECT_NE(reason("h200", lstm(1024 + 64), {256, 64}).find("hidden 1088 > 1024"), std::string::npos);
  EXPECT_NE(reason("h200", lstm(128), {256, 7}).find("SMALL_H"), std::string::npos);
  RecurrentDescription d = lstm(512);
  d.cell = Cell::gru;
  EXPECT_NE(reason("h200", d, {256, 64}).find("GRU"), std::string::npos);
  EXPECT_NE(reason("v100-16", d, {256, 64}).find("PERSIST_STATIC:"), std::string::npos);
  d = lstm(512), d.lengths = true;
  EXPECT_NE(reason("h200", d, {256, 64}).find("packed"), std::string::npos);
  d = lstm(512), d.layers = 2;
  EXPECT_NE(reason("h200", d, {256, 64}).find("2 layers"), std::string::npos);
}

TEST(RecurrentPlanner, ACpuKeepsTheMatrixInL2) {
  DeviceDescription cpu(Device::cpu());
  cpu.figures.l2 = {2 << 20, 80};
  const auto resident = [&](std::int64_t hidden) {
    return *RecurrentPlan({.inputs = 64, .hidden = hidden}, {16, 4}, cpu, {.threads = 2}).explain().residency;
  };
  EXPECT_TRUE(resident(362).resident);
  EXPECT_FALSE(resident(363).resident);
  EXPECT_EQ(resident(362).where, std::vector<std::string>{"l2"});
  EXPECT_EQ(resident(400).largest_hidden, 362);
}

AttentionDescription heads(std::int64_t count, std::int64_t dim, bool causal = false) {
  return {.heads = count, .head_dim = dim, .causal = causal, .dtype = DType::bf16, .training = true};
}

const ExplanationAlgorithm& algorithm(const Explanation& e, std::string_view name) {
  return *std::find_if(e.algorithms.begin(), e.algorithms.end(), [&](const auto& a) { return a.name == name; });
}

TEST(AttentionPlanner, ArithmeticAndMemory) {
  const AttentionSizes sizes{.batch = 2, .queries = 1024, .keys = 1024};
  EXPECT_DOUBLE_EQ(plan::attention_flops(heads(16, 64), sizes), 4.0 * 2 * 16 * 1024 * 1024 * 64);
  // Row i sees i + 1 keys: (1024 + 1) / 2 on average.
  EXPECT_DOUBLE_EQ(plan::attention_flops(heads(16, 64, true), sizes), 4.0 * 2 * 16 * 1024 * 512.5 * 64);
  AttentionDescription grouped = heads(16, 64);
  grouped.kv_heads = 4;
  const auto e = AttentionPlan(grouped, sizes, DeviceDescription::named("h200")).explain();
  const double q = 2.0 * 2 * 16 * 1024 * 64, k = q / 4;
  EXPECT_EQ(algorithm(e, "standard").bytes, std::llround(2 * q + 2 * k + 4 * 2.0 * 2 * 16 * 1024 * 1024));
  EXPECT_EQ(algorithm(e, "flash2").bytes, std::llround(2 * q + 2 * k + 4.0 * 2 * 16 * 1024));
  EXPECT_GT(algorithm(e, "flash1").bytes, algorithm(e, "flash2").bytes);
  EXPECT_EQ(algorithm(e, "warp_specialised").shared_bytes, (192 * 64 + 2 * 192 * 128) * 2);
  EXPECT_EQ(e.gemms.size(), 7U);
  EXPECT_EQ(e.gemms[0].count, 32);
}

TEST(AttentionPlanner, TheMeasuredAlgorithmsOfAnH200) {
  // bf16, 16k tokens, hidden 2048, S 4k, TFLOP/s: FlashAttention-3 and FlashAttention-2, forward.
  struct Row {
    std::int64_t dim;
    bool causal;
    double flash3, flash2;
  };
  std::vector<double> errors;
  for (const Row& row : {Row{64, false, 473, 298},
                         {64, true, 426, 278},
                         {128, false, 615, 342},
                         {128, true, 573, 302},
                         {256, false, 676, 319},
                         {256, true, 596, 261}}) {
    const AttentionSizes sizes{.batch = 4, .queries = 4096, .keys = 4096};
    const auto e = AttentionPlan(heads(2048 / row.dim, row.dim, row.causal), sizes, DeviceDescription::named("h200")).explain();
    const double flops = 1e-6 * plan::attention_flops(heads(2048 / row.dim, row.dim, row.causal), sizes);
    errors.push_back(std::fabs(flops / algorithm(e, "warp_specialised").time_us / row.flash3 - 1));
    errors.push_back(std::fabs(flops / algorithm(e, "flash2").time_us / row.flash2 - 1));
  }
  for (const double error : errors) EXPECT_LE(error, 0.15);
}

TEST(AttentionPlanner, KeysAreSplitWhereBlocksAreFew) {
  const auto splits = [](std::int64_t batch, std::int64_t queries, std::int64_t keys) {
    AttentionDescription d = heads(32, 128);
    d.training = false;
    const auto e = AttentionPlan(d, {.batch = batch, .queries = queries, .keys = keys}, DeviceDescription::named("h200")).explain();
    return algorithm(e, "flash2").splits;
  };
  EXPECT_GT(splits(1, 1, 65536), 1);
  EXPECT_EQ(splits(1, 1, 128), 1);    // two blocks of keys
  EXPECT_EQ(splits(8, 1, 65536), 1);  // 256 blocks fill 132 SMs
  EXPECT_EQ(splits(4, 4096, 4096), 1);
}

TEST(AttentionPlanner, FiniteForAnySizes) {
  std::mt19937 random(7);
  const auto size = [&](double most) {
    return static_cast<std::int64_t>(std::exp(std::uniform_real_distribution<>(-1, most)(random)));
  };
  for (int i = 0; i < 300; ++i) {
    const auto names = device_names();
    AttentionDescription d = heads(1 + size(3), 1 + size(5.5), i % 2 == 0);
    if (i % 3 == 0) d.window_left = size(6);
    const AttentionSizes sizes{.batch = size(4), .queries = size(8), .keys = size(8)};
    const auto e = AttentionPlan(d, sizes, DeviceDescription::named(names[static_cast<std::size_t>(i) % names.size()])).explain();
    EXPECT_TRUE(std::isfinite(e.time_us) && e.time_us >= 0);
    EXPECT_GE(e.time_us * 1.000001, plan::attention_flops(d, sizes) > 0 ? e.floor_us : 0);
    for (const auto& a : e.algorithms) EXPECT_TRUE(std::isfinite(a.time_us) && std::isfinite(a.backward_time_us)) << a.name;
  }
}

}  // namespace
}  // namespace everglow
