// The model of one matrix product: arithmetic in tiles on the busiest unit, or memory, whichever takes longer.
#include "plan/gemm.hpp"

#include "core/rounding.hpp"
#include "plan/calibration.hpp"
#include "plan/cpu.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

// Largest first; those that cuBLAS has by NVIDIA's guide, from the most to the least efficient.
constexpr ExplanationTile gpu_tiles[] = {{256, 128}, {128, 256}, {128, 128}, {256, 64}, {64, 256}, {128, 64}, {64, 128}, {64, 64}};
// That of src/cuda/common/matrix.cu's product.
constexpr ExplanationTile plain_tiles[] = {{32, 32}};
// Columns of a panel x rows of src/gemm's micro-kernel of each instruction set.
constexpr ExplanationTile portable_tiles[] = {{8, 6}}, avx2_tiles[] = {{16, 6}}, avx512_tiles[] = {{32, 14}};

double real(std::int64_t value) { return static_cast<double>(value); }

double tflops_of(const DeviceFigures& figures, const Setting& setting) {
  const double f32 = setting.math == Math::tf32 && figures.tf32_tflops > 0 ? figures.tf32_tflops : figures.f32_tflops;
  switch (setting.dtype) {
    case DType::f64:
      return figures.f64_tflops;
    case DType::f16:
      return figures.f16_tflops > 0 ? figures.f16_tflops : figures.f32_tflops;
    case DType::bf16:
      return figures.bf16_tflops > 0 ? figures.bf16_tflops : figures.f32_tflops;
    default:
      return f32;
  }
}

bool uses_tensor_cores(const DeviceFigures& figures, const Setting& setting) {
  if (figures.capability == 0) return false;
  if (setting.dtype == DType::f16) return figures.f16_tflops > 0;
  if (setting.dtype == DType::bf16) return figures.bf16_tflops > 0;
  return setting.dtype == DType::f32 && setting.math == Math::tf32 && figures.tf32_tflops > 0;
}

double area_efficiency(const ExplanationTile& tile) {
  const double reuse = real(tile.m) * real(tile.n) / real(tile.m + tile.n);
  return std::min(1.0, std::sqrt(reuse / calibration::best_tile_reuse));
}

double alignment_share(const Machine& machine, std::int64_t bytes) {
  if (!machine.tensor || machine.alignment == 0 || bytes % machine.alignment == 0) return 1;
  if (machine.capability < 80) return calibration::misaligned_no_tensor;
  return bytes < 4 ? calibration::misaligned_2_bytes : calibration::misaligned_share;
}

double time_with(const Machine& machine, const Product& p, const ExplanationTile& tile, std::int64_t split) {
  if (machine.cpu) return cpu_product_us(machine, p);
  const double busiest = std::ceil(real(tiles_of(p, tile)) * real(split) / machine.units);
  // A short part of k costs as much as the least one, so that a longer k never makes a split pay that did not.
  const std::int64_t depth = split > 1 ? std::max(divided_up(p.k, split), calibration::least_split_k) : p.k;
  const double each = 2 * real(tile.m) * real(tile.n) * real(depth);
  const double share = area_efficiency(tile) * alignment_share(machine, p.alignment);
  const double math = busiest * each * machine.units / (machine.rate * share);
  const double parts = split > 1 ? 2 * 4 * real(split) * real(p.m) * real(p.n) : 0;  // f32, written and read once
  const double memory = bytes_of(p, machine.element) / machine.copy;
  return machine.overhead_us + std::max(math, memory) + parts / machine.copy;
}

}  // namespace

Machine machine_of(const DeviceFigures& figures, const Setting& setting) {
  Machine out;
  out.cpu = figures.capability == 0;
  out.element = static_cast<std::int64_t>(size_of(setting.dtype));
  if (setting.dtype == DType::f16) out.half = DType::f16;
  out.tensor = uses_tensor_cores(figures, setting) && !setting.plain;
  out.capability = figures.capability;
  out.fixed = setting.tile;
  const double tflops = std::max(tflops_of(figures, setting), 1e-6);  // TFLOP/s are 1e6 FLOP/us
  if (!out.cpu) {
    out.units = std::max(figures.units, 1);
    out.peak = tflops * 1e6;
    out.rate = out.peak * (out.tensor ? figures.achieved_math : calibration::cuda_core_share);
    out.bandwidth = std::max(figures.bandwidth_gbs, 1e-3) * 1e3;
    out.copy = out.bandwidth * figures.achieved_bandwidth;
    out.overhead_us = calibration::launch_us;
    out.alignment = figures.tensor_alignment;
    out.tiles = gpu_tiles;
    if (setting.plain) {
      out.rate = figures.f32_tflops * 1e6 * calibration::plain_share / area_efficiency(plain_tiles[0]);
      out.alignment = 0, out.tiles = plain_tiles;
    }
    return out;
  }
  const int cores = std::max(figures.units, 1);
  out.units = std::max(setting.threads, 1);
  const double share = std::min(1.0, static_cast<double>(out.units) / cores);
  const CpuFigures& core = figures.cpu;
  // One core alone runs faster than its share of all of them.
  const std::size_t dtype = std::min<std::size_t>(static_cast<std::size_t>(setting.dtype), 2);
  out.peak =
      1e6 * std::min(tflops, out.units * std::max(tflops / cores, setting.dtype == DType::f64 ? 0 : core.core_tflops[dtype]));
  out.rate = setting.reference ? figures.clock_ghz * 1e3 * calibration::reference_flops_a_clock : out.peak * figures.achieved_math;
  const double memory = core.core_bandwidth_gbs > 0 ? std::min(figures.bandwidth_gbs, out.units * core.core_bandwidth_gbs)
                                                    : figures.bandwidth_gbs * share;
  out.bandwidth = std::max(memory, 1e-3) * 1e3;
  out.copy = out.bandwidth * figures.achieved_bandwidth;
  const int running = std::min(out.units, cores);
  out.cache = figures.l2.bytes * running, out.cache_bandwidth = std::max(figures.l2.gbs, 1e-3) * 1e3 * running;
  out.last_cache = figures.l3.bytes, out.last_bandwidth = std::max(figures.l3.gbs, 1e-3) * 1e3 * running;
  out.tiles = setting.lanes == 4   ? std::span<const ExplanationTile>(portable_tiles)
              : setting.lanes == 8 ? std::span<const ExplanationTile>(avx2_tiles)
                                   : std::span<const ExplanationTile>(avx512_tiles);
  set_costs(out, figures, setting);
  out.overhead_us = calibration::cpu_call_us + (out.units > 1 ? out.core.fork_us : 0);
  return out;
}

std::int64_t whole(double value) {
  constexpr double most = 9.2e18;
  return static_cast<std::int64_t>(std::clamp(value, -most, most));
}

double flops_of(const Product& p) { return 2 * real(p.m) * real(p.n) * real(p.k); }

double bytes_of(const Product& p, std::int64_t element) {
  return real(element) * (real(p.m) * real(p.k) + real(p.k) * real(p.n) + real(p.m) * real(p.n));
}

double intensity_of(const Product& p, std::int64_t element) {
  const double bytes = bytes_of(p, element);
  return bytes > 0 ? flops_of(p) / bytes : 0;
}

std::int64_t tiles_of(const Product& p, const ExplanationTile& tile) { return divided_up(p.m, tile.m) * divided_up(p.n, tile.n); }

double tile_efficiency(const Product& p, const ExplanationTile& tile) {
  const double area = real(tiles_of(p, tile)) * real(tile.m) * real(tile.n);
  return area > 0 ? real(p.m) * real(p.n) / area : 1;
}

std::int64_t tiles_a_unit(const Machine& machine, const ExplanationTile& tile) {
  if (machine.cpu) return 1;
  constexpr std::int64_t half_of_registers = 128 << 10, most = 4;
  return std::clamp<std::int64_t>(half_of_registers / std::max<std::int64_t>(4 * tile.m * tile.n, 1), 1, most);
}

double waves_of(const Machine& machine, const Product& p, const ExplanationTile& tile) {
  return real(tiles_of(p, tile)) / real(machine.units * tiles_a_unit(machine, tile));
}

double wave_efficiency(double waves) { return waves > 0 ? waves / std::ceil(waves) : 1; }

Prediction predict(const Machine& machine, const Product& p) {
  const ExplanationTile first = machine.fixed.m > 0 ? machine.fixed : machine.tiles.front();
  if (p.m == 0 || p.n == 0) return {first, 1, 0};  // nothing is launched
  if (machine.fixed.m > 0) return {first, 1, time_with(machine, p, first, 1)};
  Prediction best{first, 1, time_with(machine, p, first, 1)};
  for (const ExplanationTile& tile : machine.tiles) {
    for (std::int64_t split = 1; split <= calibration::most_splits; split *= 2) {
      if (split > 1 && machine.cpu) break;
      const double time = time_with(machine, p, tile, split);
      if (time < best.time_us) best = {tile, split, time};
    }
  }
  return best;
}

double floor_us(const Machine& machine, const Product& p) {
  return std::max(flops_of(p) / machine.peak, bytes_of(p, machine.element) / machine.bandwidth);
}

std::int64_t alignment_of(std::int64_t bytes) { return bytes == 0 ? 128 : std::min<std::int64_t>(bytes & -bytes, 128); }

ExplanationOperand operand(std::string_view role, std::string_view tensor, std::int64_t columns, const Machine& machine) {
  const std::int64_t bytes = columns * machine.element;
  return {std::string(role), std::string(tensor), bytes, alignment_of(bytes)};
}

Pass pass_of(std::string_view name) {
  return name == "forward" ? Pass::forward : name == "activation_gradient" ? Pass::activation_gradient : Pass::weight_gradient;
}

void explain_product(const Machine& machine, ExplanationGemm& gemm) {
  std::int64_t alignment = 128;
  for (const auto& o : gemm.operands) alignment = std::min(alignment, o.alignment_bytes);
  const Product p{gemm.m, gemm.n, gemm.k, alignment, pass_of(gemm.pass)};
  gemm.alignment_bytes = alignment;
  gemm.arithmetic_intensity = intensity_of(p, machine.element);
  gemm.ridge = ridge_of(machine);
  gemm.bound = gemm.arithmetic_intensity < gemm.ridge ? "memory" : "math";
  gemm.tile = machine.fixed.m > 0 ? machine.fixed : machine.tiles.front();
  gemm.tiles = tiles_of(p, gemm.tile);
  gemm.tile_efficiency = tile_efficiency(p, gemm.tile);
  gemm.waves = waves_of(machine, p, gemm.tile);
  gemm.wave_efficiency = wave_efficiency(gemm.waves);
  // `time_us` is that of the fixed tile where one is given; the choice beside it is free of it.
  Machine free = machine;
  free.fixed = {};
  const Prediction choice = predict(free, p);
  gemm.chosen_tile = choice.tile;
  gemm.split_k = choice.split_k;
  gemm.time_us = machine.fixed.m > 0 ? predict(machine, p).time_us : choice.time_us;
  gemm.floor_us = floor_us(machine, p);
  if (gemm.source.empty()) gemm.source = "predicted";
}

double time_of(std::span<const ExplanationGemm> gemms) {
  double sum = 0;
  for (const auto& gemm : gemms) sum += gemm.time_us * real(gemm.count);
  return sum;
}

double floor_of(std::span<const ExplanationGemm> gemms) {
  double sum = 0;
  for (const auto& gemm : gemms) sum += gemm.floor_us * real(gemm.count);
  return sum;
}

}  // namespace everglow::plan
