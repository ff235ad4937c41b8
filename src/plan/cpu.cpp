// Costs of products on a CPU. A product is a call, its multiply-adds, and the elements of its three matrices.
#include "plan/cpu.hpp"

#include "plan/calibration.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

namespace c = calibration;

double real(std::int64_t value) { return static_cast<double>(value); }
std::size_t index_of(DType dtype) { return std::min<std::size_t>(static_cast<std::size_t>(dtype), 2); }

/// GB/s are bytes a nanosecond.
double positive(double value) { return std::max(value, 1e-3); }

struct Estimate {
  const DeviceFigures& f;
  double lanes, vector_ns;  // a nanosecond is so many clocks of one vector
  double tflops(std::size_t dtype) const { return dtype == 0 ? f.f32_tflops : dtype == 1 ? f.f16_tflops : f.bf16_tflops; }
  double bytes(std::size_t dtype) const { return dtype == 0 ? 4 : 2; }

  /// By all cores, operands in memory.
  ProductCosts product(double tflops, double bytes, double call, double layout_clocks) const {
    const double element = bytes / positive(f.bandwidth_gbs) + layout_clocks * vector_ns / f.units;
    return {call, 2 / (positive(tflops) * 1e3 * f.achieved_math), element, element, element};
  }
  /// `pairs`: q k and do v are multiplied in half of the time, one product of two and two of five.
  AttentionCosts attention(double bytes, bool backward, bool pairs) const {
    const double share = !pairs ? 1 : backward ? 0.8 : 0.75;
    const double multiply = share * 2 * f.units / (positive(f.f32_tflops) * 1e3 * c::cpu_attention_share);
    return {multiply, (backward ? c::score_backward_clocks : c::score_clocks) * vector_ns,
            c::move_clocks * vector_ns + bytes / positive(f.l3.gbs), c::block_us};
  }
};

}  // namespace

CpuFigures estimate_costs(const DeviceFigures& f, int lanes, bool pairs) {
  const double clock = f.clock_ghz > 0 ? f.clock_ghz : 2.5, width = lanes > 0 ? lanes : 16;
  const Estimate estimate{f, width, 1 / (clock * width)};
  CpuFigures out;
  out.threads = std::max(f.units, 1);
  out.speedup = out.threads;
  out.core_bandwidth_gbs = f.bandwidth_gbs / out.threads;
  out.fork_us = out.threads > 1 ? c::cpu_fork_us : 0;
  out.hand_off_us = out.threads > 1 ? c::cpu_hand_off_us : 0;
  out.exponential_ns = c::exponential_clocks * estimate.vector_ns;
  for (std::size_t d = 0; d < 3; ++d) {
    const double bytes = estimate.bytes(d), tflops = estimate.tflops(d);
    out.core_tflops[d] = tflops * f.achieved_math / out.threads;
    const double own = (pairs && d == 2 ? 2 : 1) * f.f32_tflops;
    const double core_ns = 2 * out.threads / (positive(own) * 1e3 * f.achieved_math);
    for (std::size_t pass = 0; pass < 3; ++pass) {
      out.library[d][pass] = estimate.product(tflops, bytes, c::cpu_library_call_us + out.fork_us, c::layout_clocks);
      out.own[d][pass] = estimate.product(own, bytes, c::cpu_call_us + out.fork_us, c::layout_clocks);
    }
    out.step[d] = {c::cpu_call_us, core_ns, c::layout_clocks * estimate.vector_ns, bytes / positive(f.l2.gbs),
                   c::layout_clocks * estimate.vector_ns};
    out.pack_ns[d] = {bytes / positive(out.core_bandwidth_gbs) + c::layout_clocks * estimate.vector_ns,
                      bytes / positive(out.core_bandwidth_gbs) + c::turn_clocks * estimate.vector_ns};
    for (std::size_t backward = 0; backward < 2; ++backward)
      out.attention[d][backward] = out.small_heads[d][backward] = estimate.attention(bytes, backward == 1, pairs && d == 2);
    const double few = estimate.attention(bytes, false, false).multiply_ns;
    out.few_queries_ns[d] = std::max(few, bytes / 2 / positive(out.core_bandwidth_gbs));
  }
  for (std::size_t cell = 0; cell < out.cell_ns.size(); ++cell)
    out.cell_ns[cell] = {c::cell_clocks[cell].forward * estimate.vector_ns, c::cell_clocks[cell].backward * estimate.vector_ns};
  return out;
}

double speedup_of(const CpuFigures& core, int threads) {
  if (threads <= 1) return 1;
  if (core.threads <= 1) return 1;
  const double each = (core.speedup - 1) / (core.threads - 1);
  return 1 + std::max(each, 0.0) * (std::min(threads, core.threads) - 1);
}

ProductCosts with_threads(const CpuFigures& core, ProductCosts costs, int threads) {
  const double slower = speedup_of(core, core.threads) / speedup_of(core, threads);
  costs.multiply_ns *= slower, costs.a_ns *= slower, costs.b_ns *= slower, costs.c_ns *= slower;
  if (threads == 1) costs.call_us = std::max(costs.call_us - core.fork_us, costs.call_us / 4);
  return costs;
}

namespace {

/// Plain loops on one thread: multiply-adds are all that counts.
void set_reference(Machine& machine) {
  const double multiply = 2e3 / machine.rate;
  const ProductCosts plain{c::cpu_call_us, multiply, 0, 0, 0};
  for (auto* costs : {&machine.costs, &machine.small, &machine.mixed, &machine.single}) costs->fill(plain);
  machine.units = 1, machine.speedup = 1;
  machine.core = {};
  machine.core.step.fill({0, multiply, 0, 0, 0});
  const double unit = c::reference_unit_products * multiply;
  for (auto& cell : machine.core.cell_ns) cell = {unit, unit};
  const AttentionCosts attention{multiply, unit, 0, 0};
  for (auto* costs : {&machine.core.attention, &machine.core.small_heads}) costs->fill({attention, attention});
  machine.core.few_queries_ns.fill(multiply);
}

}  // namespace

void set_costs(Machine& machine, const DeviceFigures& figures, const Setting& setting) {
  machine.core = figures.cpu.threads > 0 ? figures.cpu : estimate_costs(figures, setting.lanes, setting.pairs);
  machine.speedup = speedup_of(machine.core, machine.units);
  if (setting.reference) return set_reference(machine);
  machine.library = setting.library;
  const std::size_t d = index_of(setting.dtype);
  for (std::size_t pass = 0; pass < 3; ++pass) {
    const auto known = [&](bool library, std::size_t dtype) {
      const ProductCosts& of_library = machine.core.library[dtype][pass];
      return with_threads(machine.core, library && of_library.multiply_ns > 0 ? of_library : machine.core.own[dtype][pass],
                          machine.units);
    };
    machine.costs[pass] = known(setting.library, d);
    machine.small[pass] = known(false, d);
    machine.single[pass] = known(setting.library_f32, 0);
    machine.mixed[pass] = d == 0 ? machine.single[pass] : machine.small[pass];
    machine.mixed[pass].multiply_ns = std::max(machine.mixed[pass].multiply_ns, known(false, 0).multiply_ns);
  }
}

double cost_us(const ProductCosts& costs, double m, double n, double k) {
  return costs.call_us + (costs.multiply_ns * m * n * k + costs.a_ns * m * k + costs.b_ns * k * n + costs.c_ns * m * n) / 1000;
}

double cpu_product_us(const Machine& machine, const Product& p) {
  const bool asked = machine.fixed.m > 0;
  const ExplanationTile tile = asked ? machine.fixed : machine.tiles.front();
  const std::int64_t columns = asked ? tile.m : std::max<std::int64_t>(tile.m / 2, 1);
  const double rows = asked ? std::ceil(real(p.n) / real(tile.n)) * real(tile.n) : real(p.n);
  const double filled = std::ceil(real(p.m) / real(columns)) * real(columns);
  const auto pass = static_cast<std::size_t>(p.pass);
  double time = cost_us(machine.costs[pass], rows, filled, real(p.k));
  // A small product of the library's row is our own; with the smaller of both, more work never takes less.
  if (flops_of(p) < 2 * library_pays) time = std::min(time, cost_us(machine.small[pass], rows, filled, real(p.k)));
  return std::max(time, floor_us(machine, p));
}

double cpu_stream_us(const Machine& machine, double bytes) {
  if (bytes <= real(machine.cache)) return bytes / machine.cache_bandwidth;
  if (bytes <= real(machine.last_cache)) return bytes / machine.last_bandwidth;
  return bytes / machine.copy;
}

}  // namespace everglow::plan
