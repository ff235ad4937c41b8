// The numbers of each device. Sources: NVIDIA's architecture whitepapers and data sheets, named at each row; dense rates with f32
// accumulation, at boost clock. Registers are 256 KiB an SM on all of them.
#include "plan/devices.hpp"

#include "plan/calibration.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace everglow::plan {
namespace {

constexpr double KiB = 1024, MiB = 1024 * 1024;

constexpr NamedDevice devices[] = {
    // Tesla V100 SXM2 16 GB. WP-08608-001 (Volta whitepaper): 80 SMs, 1530 MHz, 7.8 / 15.7 / 125 TFLOP/s, 900 GB/s, 6 MB L2, up to
    // 96 KB shared memory; no bf16 and no tf32.
    {"v100-16", 80, 70, 1.530, 7.8, 15.7, 0, 125, 0, 900, 16, 6, 96},
    // T4. WP-09183-001 (Turing whitepaper) and data sheet: 40 SMs, 1590 MHz, 8.1 / 65 TFLOP/s, 320 GB/s, 4 MB L2, 64 KB; f64 is
    // 1/32.
    {"t4", 40, 75, 1.590, 0.25, 8.1, 0, 65, 0, 320, 16, 4, 64},
    // A100 SXM4 40 GB. Ampere whitepaper: 108 SMs, 1410 MHz, 9.7 / 19.5 / 156 / 312 TFLOP/s, 1555 GB/s, 40 MB L2, 163 KB a block.
    {"a100-40", 108, 80, 1.410, 9.7, 19.5, 156, 312, 312, 1555, 40, 40, 163},
    // A100 SXM4 80 GB. Data sheet: the same with 2039 GB/s.
    {"a100-80", 108, 80, 1.410, 9.7, 19.5, 156, 312, 312, 2039, 80, 40, 163},
    // GeForce RTX 4090. Ada whitepaper, appendix A: 128 SMs, 2520 MHz, 82.6 TFLOP/s f32 and tf32, 165.2 with f32 accumulation,
    // 1008 GB/s, 72 MB L2; 99 KB a block (CUDA guide, capability 8.9); f64 is 1/64.
    {"rtx4090", 128, 89, 2.520, 1.29, 82.6, 82.6, 165.2, 165.2, 1008, 24, 72, 99},
    // L4. Data sheet: 30.3 / 60 / 121 TFLOP/s (half of the sparse figures), 300 GB/s, 24 GB; AD104 with 58 SMs at 2040 MHz, 48 MB
    // L2.
    {"l4", 58, 89, 2.040, 0.47, 30.3, 60, 121, 121, 300, 24, 48, 99},
    // L40S. Data sheet: 91.6 / 183 / 362 TFLOP/s, 864 GB/s, 48 GB; AD102 with 142 SMs at 2520 MHz, 96 MB L2.
    {"l40s", 142, 89, 2.520, 1.43, 91.6, 183, 362, 362, 864, 48, 96, 99},
    // H100 SXM5. WP-10792 (Hopper whitepaper): 132 SMs, 1830 MHz with tensor cores, 33.5 / 66.9 / 494.7 / 989.4 TFLOP/s, 3352 GB/s,
    // 50 MB L2, 227 KB a block.
    {"h100-sxm", 132, 90, 1.830, 33.5, 66.9, 494.7, 989.4, 989.4, 3352, 80, 50, 227},
    // H100 PCIe. The same paper: 114 SMs, 1755 MHz, 25.6 / 51.2 / 378 / 756 TFLOP/s, 2039 GB/s.
    {"h100-pcie", 114, 90, 1.755, 25.6, 51.2, 378, 756, 756, 2039, 80, 50, 227},
    // H200 SXM. Data sheet: arithmetic of the H100 SXM, 4.8 TB/s, 141 GB; the driver reports 60 MB L2.
    {"h200", 132, 90, 1.830, 33.5, 66.9, 494.7, 989.4, 989.4, 4800, 141, 60, 227},
    // B200. Blackwell data sheet (HGX, a GPU): 37 / 75 / 1100 / 2250 TFLOP/s, 7.7 TB/s, 180 GB; 148 SMs, 1965 MHz, 126 MB L2
    // (driver).
    {"b200", 148, 100, 1.965, 37, 75, 1100, 2250, 2250, 7700, 180, 126, 227},
};

}  // namespace

std::span<const NamedDevice> named_devices() { return devices; }

const NamedDevice* find_device(std::string_view name) {
  const auto* found = std::find_if(std::begin(devices), std::end(devices), [&](const NamedDevice& d) { return d.name == name; });
  return found == std::end(devices) ? nullptr : found;
}

namespace {

/// What follows from the capability alone.
void set_rules(DeviceFigures& out) {
  out.register_bytes = static_cast<std::int64_t>(256 * KiB);
  // cuBLAS serves tensor cores from rows that are multiples of 16 bytes; 128 are best from the A100 on (NVIDIA's guide to
  // products).
  out.tensor_alignment = 16;
  out.best_alignment = out.capability >= 80 ? 128 : 16;
  out.largest_cluster = out.capability >= 90 && out.capability < 120 ? 16 : 1;  // CUDA guide: 8 portable, 16 by opt-in
  out.achieved_bandwidth = calibration::bandwidth_share;
}

}  // namespace

DeviceFigures figures_of(const NamedDevice& d) {
  DeviceFigures out;
  out.source = "data sheet";
  out.units = d.units, out.capability = d.capability, out.clock_ghz = d.clock_ghz;
  out.f64_tflops = d.f64_tflops, out.f32_tflops = d.f32_tflops, out.tf32_tflops = d.tf32_tflops;
  out.f16_tflops = d.f16_tflops, out.bf16_tflops = d.bf16_tflops;
  out.bandwidth_gbs = d.bandwidth_gbs, out.memory_gib = d.memory_gib;
  out.l2_bytes = static_cast<std::int64_t>(d.l2_mib * MiB);
  out.shared_bytes = static_cast<std::int64_t>(d.shared_kib * KiB);
  set_rules(out);
  for (const auto& known : calibration::math_shares)
    if (known.device == d.name) out.achieved_math = known.share;
  return out;
}

const NamedDevice* find_card(std::string_view card) {
  // The longer of two names that fit comes first.
  constexpr std::pair<std::string_view, std::string_view> cards[] = {{"V100-SXM2-16GB", "v100-16"},
                                                                     {"T4", "t4"},
                                                                     {"A100-SXM4-80GB", "a100-80"},
                                                                     {"A100-SXM4-40GB", "a100-40"},
                                                                     {"RTX 4090", "rtx4090"},
                                                                     {"L40S", "l40s"},
                                                                     {"L4", "l4"},
                                                                     {"H100 80GB HBM3", "h100-sxm"},
                                                                     {"H100 PCIe", "h100-pcie"},
                                                                     {"H200", "h200"},
                                                                     {"B200", "b200"}};
  for (const auto& [words, name] : cards)
    if (card.ends_with(words)) return find_device(name);
  return nullptr;
}

DeviceFigures estimate_gpu(const GpuFacts& facts) {
  struct Rates {
    int capability;
    double f64, f32, tf32, f16;  // FLOP a clock of one SM
  };
  constexpr Rates known[] = {
      {120, 4, 256, 256, 512},   {100, 128, 256, 4096, 8192}, {90, 128, 256, 2048, 4096}, {86, 4, 256, 256, 512},
      {80, 64, 128, 1024, 2048}, {75, 4, 128, 0, 1024},       {70, 64, 128, 0, 1024},     {0, 4, 128, 0, 0}};
  const Rates& rates =
      *std::find_if(std::begin(known), std::end(known), [&](const Rates& r) { return facts.capability >= r.capability; });
  const double clocks = facts.units * facts.clock_ghz / 1000;
  DeviceFigures out;
  out.source = "estimated";
  out.units = facts.units, out.capability = facts.capability, out.clock_ghz = facts.clock_ghz;
  out.f64_tflops = rates.f64 * clocks, out.f32_tflops = rates.f32 * clocks, out.tf32_tflops = rates.tf32 * clocks;
  out.f16_tflops = rates.f16 * clocks, out.bf16_tflops = facts.capability >= 80 ? out.f16_tflops : 0;
  out.bandwidth_gbs = facts.bandwidth_gbs;
  set_rules(out);
  return out;
}

DeviceFigures estimate_cpu(const CpuFacts& facts) {
  // What is not known is taken from a server core of these years: 2.5 GHz, 32 KiB, 1 MiB, 16 MiB.
  const double clock = facts.clock_ghz > 0 ? facts.clock_ghz : 2.5;
  // Two vector units an f32 lane each; bf16 dot products do twice, tiles of 16 x 16 x 32 in 16 clocks 16 times the work of AVX-512.
  const double f32 = clock * facts.f32_lanes * 2 * (facts.fused ? 2 : 1) * facts.cores / 1000;
  DeviceFigures out;
  out.source = "estimated";
  out.units = facts.cores, out.clock_ghz = clock;
  out.f32_tflops = out.tf32_tflops = f32;
  out.f64_tflops = f32 / 2;
  out.f16_tflops = f32;
  out.bf16_tflops = facts.amx_bf16 ? clock * 2048 * facts.cores / 1000 : facts.avx512_bf16 ? 2 * f32 : f32;
  const auto cache = [&](std::int64_t bytes, std::int64_t usual, double bytes_a_clock) {
    return CacheFigures{bytes > 0 ? bytes : usual, bytes_a_clock * clock};
  };
  out.l1 = cache(facts.l1_bytes, 32 << 10, 16.0 * facts.f32_lanes / 4);
  out.l2 = cache(facts.l2_bytes, 1 << 20, 8.0 * facts.f32_lanes / 4);
  out.l3 = cache(facts.l3_bytes, 16 << 20, 14);
  out.l2_bytes = out.l2.bytes;
  out.bandwidth_gbs = 14.0 * facts.cores;  // two virtual Sapphire Rapids cores read 14 GB/s each
  out.achieved_math = 0.85, out.achieved_bandwidth = 1;
  return out;
}

}  // namespace everglow::plan
