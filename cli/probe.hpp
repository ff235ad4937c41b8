// What this CPU can do, measured: peak and bandwidth for people, and the costs that predictions are made of (CpuFigures).
#pragma once

#include "cli/operands.hpp"
#include "cli/stopwatch.hpp"

#include <everglow/everglow.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace everglow::cli {

/// Products of the linear rows: oneDNN's and ours, each dtype and pass, from a row of a batch to large ones.
class ProductProbe {
 public:
  ProductProbe(OperandMemory& memory, int threads);
  void lap();
  void put(DeviceFigures& figures) const;
  /// That large products of f32, f16 and bf16 reach with all threads.
  std::array<double, 3> tflops() const;

 private:
  struct Product {
    std::size_t dtype, pass;
    bool library;
    std::array<double, 3> sizes;  // m, n, k, row-major
    Stopwatch watch;
    double tflops() const { return 2e-6 * sizes[0] * sizes[1] * sizes[2] / watch.us(); }
  };
  void add(OperandMemory& memory, int threads, DType dtype, bool library);
  void add_step(OperandMemory& memory, DType dtype);
  ProductCosts costs_of(std::size_t dtype, std::size_t pass, bool library) const;

  int threads_;
  std::vector<Product> products_;
  struct Step {
    std::size_t dtype;
    std::array<double, 3> sizes;
    Stopwatch watch;
  };
  std::vector<Step> steps_;
  struct Core {
    std::size_t dtype;
    Stopwatch watch;
  };
  std::vector<Core> cores_;  // a large product of each dtype on one thread
  struct Pack {
    std::size_t dtype, turned;
    Stopwatch watch;
  };
  std::vector<Pack> packs_;
  std::unique_ptr<Stopwatch> call_, alone_, together_, core_f32_;
};

/// Cells of recurrent layers, attention and the exponential, on one thread.
class LayerProbe {
 public:
  explicit LayerProbe(OperandMemory& memory);
  void lap();
  void put(DeviceFigures& figures) const;

 private:
  struct Timed {
    std::size_t which, direction;  // cell, or dtype of attention; forward, backward
    std::vector<double> counts;
    Stopwatch watch;
  };
  void add_cells(OperandMemory& memory);
  void add_attention(OperandMemory& memory, DType dtype);
  void add_few_queries(OperandMemory& memory, DType dtype);
  static std::vector<double> fit(const std::vector<Timed>& all, std::size_t which, std::size_t direction);

  std::vector<Timed> cells_, blocks_, small_, few_;
  std::unique_ptr<Stopwatch> softmax_;
};

/// Registers, caches, memory and the way from core to core.
class MachineProbe {
 public:
  MachineProbe(const OperandMemory& memory, int threads);
  void lap();
  void put(DeviceFigures& figures) const;
  /// Bytes that one core reads, and GB/s of one core and of all together.
  struct Level {
    std::string name;
    std::int64_t bytes;
    double one_gbs = 0, all_gbs = 0;
  };
  const std::vector<Level>& levels() const { return levels_; }
  double one_tflops() const { return one_tflops_; }
  double all_tflops() const { return all_tflops_; }

 private:
  const OperandMemory& memory_;
  int threads_;
  std::vector<Level> levels_;
  double one_tflops_ = 0, all_tflops_ = 0, hand_off_us_ = 0;
};

struct ProbeResult {
  std::string cpu, isa;
  int threads = 1;
  DeviceFigures figures;
  std::vector<MachineProbe::Level> levels;
  double one_tflops = 0, all_tflops = 0;   // multiply-adds in registers
  std::array<double, 3> product_tflops{};  // of f32, f16 and bf16, all threads
};

/// All of them. A lap takes about half a second on two cores; each adds to what the laps before it found.
class Probe {
 public:
  Probe(OperandMemory& memory, int threads);
  void lap();
  ProbeResult result() const;

 private:
  int threads_;
  ProductProbe products_;
  LayerProbe layers_;
  MachineProbe machine_;
};
/// Laps of a probe, with a bar on a terminal.
ProbeResult probe_cpu(OperandMemory& memory, int threads);

/// Where the figures are kept: $XDG_CACHE_HOME/everglow/probe.json, else ~/.cache. Empty where neither variable is set.
std::filesystem::path probe_file();
/// Writes a file beside it first, so that a reader never finds half of one. Throws Error(io).
void write_probe(const ProbeResult& result);
/// The kept figures where they are of this CPU, instruction set, number of threads and version; else nothing.
std::optional<DeviceFigures> kept_figures(int threads);
/// Figures by name, "library.bf16.forward.call_us", for the file and for `--json`.
std::vector<std::pair<std::string, double>> named_figures(const DeviceFigures& figures);

/// Device::cpu() with figures that this run measured, else those that are kept, else the library's estimate.
DeviceDescription described_cpu();
void use_figures(const DeviceFigures& figures);

}  // namespace everglow::cli
