// The device table and what plans do with devices that this machine does not have.
#include "plan/devices.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <string>

namespace everglow {
namespace {

TEST(Devices, AllOfThemHaveNames) {
  const std::vector<std::string> expected{"v100-16", "t4",       "a100-40",   "a100-80", "rtx4090", "l4",
                                          "l40s",    "h100-sxm", "h100-pcie", "h200",    "b200"};
  EXPECT_EQ(device_names(), expected);
  for (const auto& name : expected) {
    const auto device = DeviceDescription::named(name);
    const DeviceFigures& f = device.figures;
    EXPECT_EQ(device.name, name);
    EXPECT_FALSE(device.present);
    EXPECT_EQ(f.source, "data sheet");
    EXPECT_GT(f.f16_tflops, f.f32_tflops);
    EXPECT_EQ(f.bf16_tflops > 0, f.capability >= 80);
    EXPECT_EQ(f.best_alignment, f.capability >= 80 ? 128 : 16);
    // SMs x clock x f32 units x 2: 64 units an SM until the A100, 128 from Ada and Hopper on.
    const double units = f.capability <= 80 ? 64 : 128;
    EXPECT_NEAR(f.units * f.clock_ghz * units * 2 / 1000, f.f32_tflops, 0.09 * f.f32_tflops) << name;
    EXPECT_GT(f.achieved_math, 0.4);
    EXPECT_LT(f.achieved_math, 1);
  }
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Devices, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(error_of([] { DeviceDescription::named("h300"); }),
            "[device] expected cpu, cuda:N, v100-16, t4, a100-40, a100-80, rtx4090, l4, l40s, h100-sxm, h100-pcie, h200, b200 "
            "(for example h200), got \"h300\"");
}

TEST(Devices, ANamedDeviceExplainsAndDoesNotRun) {
  const LinearPlan plan({.inputs = 8, .outputs = 8, .dtype = DType::f16}, {4}, DeviceDescription::named("t4"));
  const Explanation& e = plan.explain();
  EXPECT_EQ(e.device, "t4");
  EXPECT_EQ(e.kernel, "");
  ASSERT_FALSE(e.rows.empty());
  for (const ExplanationRow& row : e.rows)  // not built, or the card too old: all say CUDA
    EXPECT_NE(row.reason.find("CUDA"), std::string::npos) << row.name << ": " << row.reason;
  EXPECT_EQ(e.gemms[0].source, "predicted");
  EXPECT_GT(e.time_us, 0);
  EXPECT_EQ(plan.workspace_bytes(), 0U);
  EXPECT_EQ(error_of([&] { plan.forward({}, {}); }),
            "[linear.forward] expected a device that is present, got a plan for t4 by name");
  EXPECT_NE(error_of([] { LinearPlan({.inputs = 8, .outputs = 8}, {4}, Device::cuda(99)); }).find("CUDA"), std::string::npos);
}

TEST(Devices, ACpuIsEstimatedFromFacts) {
  const DeviceFigures f =
      plan::estimate_cpu({.cores = 2, .f32_lanes = 16, .fused = true, .amx_bf16 = true, .clock_ghz = 3, .l2_bytes = 2 << 20});
  EXPECT_EQ(f.source, "estimated");
  EXPECT_DOUBLE_EQ(f.f32_tflops, 2 * 3 * 16 * 2 * 2 / 1000.0);
  EXPECT_DOUBLE_EQ(f.bf16_tflops, 2 * 3 * 2048 / 1000.0);
  EXPECT_EQ(f.l2.bytes, 2 << 20);
  const DeviceFigures unknown = plan::estimate_cpu({});
  EXPECT_GT(unknown.f32_tflops, 0);
  EXPECT_GT(unknown.l3.bytes, unknown.l2.bytes);
  const DeviceDescription cpu(Device::cpu());
  EXPECT_EQ(cpu.figures.source, "estimated");
  EXPECT_EQ(cpu.figures.units, cpu.cores);
}

TEST(Devices, OfACpuTheRowsProductsAreChosen) {
  const LinearPlan own({.inputs = 8, .outputs = 8}, {4}, Device::cpu(), {.force = "cpu.linear"});
  EXPECT_EQ(own.explain().gemms[0].source, "chosen");
  EXPECT_GT(own.explain().time_us, 0);
}

TEST(Devices, TilesAreTwoSizes) {
  EXPECT_EQ(error_of([] { LinearPlan({.inputs = 8, .outputs = 8}, {4}, Device::cpu(), {.tile_m = 256}); }),
            "[linear.plan] tile: expected two sizes of 1 ... 65536 (for example 256x128), got 256x0");
}

}  // namespace
}  // namespace everglow
