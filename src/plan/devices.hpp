// The device table: what each named device can do, and an estimate for the CPU at hand from facts that the caller brings.
#pragma once

#include <everglow/device.hpp>

#include <span>
#include <string_view>

namespace everglow::plan {

/// One named GPU. No strings of its own, so that the table is data.
struct NamedDevice {
  std::string_view name;
  int units, capability;
  double clock_ghz, f64_tflops, f32_tflops, tf32_tflops, f16_tflops, bf16_tflops;
  double bandwidth_gbs, memory_gib;
  double l2_mib, shared_kib;  // shared: what one thread block may have
};

std::span<const NamedDevice> named_devices();
DeviceFigures figures_of(const NamedDevice& device);
/// Null where no device has this name.
const NamedDevice* find_device(std::string_view name);

/// The device of the table whose cards call themselves so ("NVIDIA H200"), or null.
const NamedDevice* find_card(std::string_view card);

/// What a card says of itself that is not in the table.
struct GpuFacts {
  int units = 0, capability = 0;
  double clock_ghz = 0, bandwidth_gbs = 0;
};
/// Rates from the operations a clock that an SM of this capability does, by the CUDA guide's table of arithmetic throughput.
DeviceFigures estimate_gpu(const GpuFacts& facts);

/// What CPUID and the system say of a CPU; 0 where they say nothing.
struct CpuFacts {
  int cores = 1;
  int f32_lanes = 4;         // of the widest vectors that the chosen instruction set uses
  bool fused = false;        // multiply-add in one instruction
  bool amx_bf16 = false;     // tiles of bf16
  bool avx512_bf16 = false;  // dot products of bf16 pairs
  double clock_ghz = 0;
  std::int64_t l1_bytes = 0;  // of one core
  std::int64_t l2_bytes = 0;
  std::int64_t l3_bytes = 0;  // shared by all cores
};
DeviceFigures estimate_cpu(const CpuFacts& facts);

}  // namespace everglow::plan
