// Roofline, tile and wave model of one matrix product in the column-major view. Pure functions of sizes and figures.
#pragma once

#include <everglow/device.hpp>
#include <everglow/plan.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace everglow::plan {

/// What a product is for; its index in the costs of a CPU.
enum class Pass : std::uint8_t { forward, activation_gradient, weight_gradient };

/// What a device does with operands of one dtype.
struct Machine {
  bool cpu = false;
  int units = 1;           // SMs, or threads
  double peak = 1;         // FLOP/us of all units
  double rate = 1;         // FLOP/us that large products reach
  double bandwidth = 1;    // bytes/us of device memory
  double copy = 1;         // bytes/us that a copy reaches
  double overhead_us = 0;  // of one product
  std::int64_t element = 4;
  DType half = DType::bf16;    // which of 16 bits, where element is 2
  std::int64_t alignment = 0;  // bytes that rows must be multiples of; 0: no rule
  bool tensor = false;         // tensor cores
  bool advice = true;          // explanations look for sizes that pay
  int capability = 0;
  std::span<const ExplanationTile> tiles{};  // largest first
  ExplanationTile fixed{};                   // explain and predict with this one; m = 0: none
  std::int64_t cache = 0;                    // CPU: bytes of L2 and L3 of the threads, and what they read from them
  double cache_bandwidth = 0;
  std::int64_t last_cache = 0;
  double last_bandwidth = 0;
  // CPU: costs by these threads, of each pass: of the row's products, of those too small for a library, of those whose A is f32
  // beside a B of the dtype, and of f32 alone.
  std::array<ProductCosts, 3> costs{}, small{}, mixed{}, single{};
  bool library = false;  // CPU: oneDNN serves large products of the dtype
  double speedup = 1;    // CPU: of these threads beside one
  CpuFigures core{};
};

struct Setting {
  DType dtype = DType::f32;
  Math math = Math::ieee;
  int threads = 1;           // CPU
  bool reference = false;    // CPU: plain loops with double accumulation on one thread
  bool library = false;      // CPU: oneDNN may serve products of the dtype
  bool library_f32 = false;  // CPU: and of f32
  bool pairs = false;        // CPU: our micro-kernel multiplies pairs of bf16
  bool plain = false;        // GPU: the generic kernel, which has no tensor cores
  int lanes = 0;             // CPU: f32 in a vector of the row's instruction set; 0: the widest
  ExplanationTile tile{};    // m = 0: none fixed
};
Machine machine_of(const DeviceFigures& figures, const Setting& setting);

/// A count that may be too large for 64 bits: as large as fits.
std::int64_t whole(double value);

struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t alignment = 128;  // bytes, of the worst operand
  Pass pass = Pass::forward;
};

double flops_of(const Product& product);
double bytes_of(const Product& product, std::int64_t element);
double intensity_of(const Product& product, std::int64_t element);
inline double ridge_of(const Machine& machine) { return machine.peak / machine.bandwidth; }

std::int64_t tiles_of(const Product& product, const ExplanationTile& tile);
double tile_efficiency(const Product& product, const ExplanationTile& tile);
/// Tiles that one unit holds at once: f32 sums of 128 x 256 fill half the registers of an SM.
std::int64_t tiles_a_unit(const Machine& machine, const ExplanationTile& tile);
double waves_of(const Machine& machine, const Product& product, const ExplanationTile& tile);
double wave_efficiency(double waves);

struct Prediction {
  ExplanationTile tile{};
  std::int64_t split_k = 1;
  double time_us = 0;
};
/// The fastest of the machine's tiles and splits of k, or that of the fixed tile. More work never takes less time.
Prediction predict(const Machine& machine, const Product& product);
double floor_us(const Machine& machine, const Product& product);

/// Bytes from row to row as an alignment: the largest power of two that divides them, at most 128.
std::int64_t alignment_of(std::int64_t bytes);

/// "forward", "activation_gradient", "weight_gradient".
Pass pass_of(std::string_view name);
/// Fills sizes, tiles, times and alignment of a product whose names, operands and m, n, k stand.
void explain_product(const Machine& machine, ExplanationGemm& gemm);
ExplanationOperand operand(std::string_view role, std::string_view tensor, std::int64_t columns, const Machine& machine);

/// Of all products, each `count` times.
double time_of(std::span<const ExplanationGemm> gemms);
double floor_of(std::span<const ExplanationGemm> gemms);

}  // namespace everglow::plan
