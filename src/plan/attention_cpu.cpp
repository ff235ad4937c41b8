// cpu.attention_flash2: what it computes and moves, by the cuts of src/cpu/attention.cpp, times what that costs a thread.
#include "plan/attention_shape.hpp"
#include "plan/calibration.hpp"
#include "plan/cpu.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }
double up(double n, double by) { return std::ceil(n / by) * by; }

/// f32 in a vector of the machine's instruction set: a panel of the micro-kernel is two of them.
double lanes_of(const Machine& machine) { return real(machine.tiles.front().m) / 2; }

/// Busiest thread's share of equal tasks, handed out one by one.
double share_of(double tasks, const Machine& machine) {
  if (tasks <= 0) return 1;
  const double threads = std::min<double>(machine.units, tasks);
  const double busiest = std::ceil(tasks / threads) / tasks;
  return std::max(busiest, 1 / machine.speedup);
}

bool is_small(const AttentionDescription& d, const Shape& s, double block, double lanes) {
  return s.Sq <= block && s.Sk <= block && std::fmod(s.D, lanes) == 0 && std::fmod(s.Dv, lanes) == 0 && d.softcap == 0 &&
         d.dropout == 0 && !d.alibi && !d.bias;
}

}  // namespace

AttentionWork attention_work(const AttentionDescription& d, const Shape& s, const Machine& machine, bool backward) {
  const double lanes = lanes_of(machine), block = lanes * real(attention_vectors), heads = s.B * s.Hq;
  const double columns = backward ? 3 * s.D + 2 * s.Dv : s.D + s.Dv;
  AttentionWork out;
  out.tasks = heads, out.blocks = heads;
  if (!backward && s.Sq <= lanes / 2) {
    out.way = AttentionWork::Way::few_queries;
    out.multiplications = heads * s.scores * columns;
    // About two tasks a thread: keys are cut where heads are few.
    if (machine.units > 1) out.tasks = std::max(heads, std::min(2.0 * machine.units, heads * std::max(s.Sk / 256, 1.0)));
    return out;
  }
  if (is_small(d, s, block, lanes)) {
    // Keys side by side in vectors, masked or not.
    out.way = AttentionWork::Way::small_heads;
    out.scores = heads * s.Sq * up(s.Sk, lanes);
    out.multiplications = out.scores * columns;
    out.moved = (backward ? 2 : 1) * heads * (s.Sq + s.Sk) * (s.D + s.Dv);
    out.tasks = backward ? s.B * s.Hk : heads;
    return out;
  }
  const double blocks = std::max(std::ceil(s.Sq / block), 1.0), step = up(s.Sq / blocks, lanes);
  // Lanes without a query are computed; whole blocks on the diagonal too.
  const double masked = s.scores < s.Sq * s.Sk ? s.Sq * (step + real(attention_keys)) / 2 : 0;
  out.scores = heads * std::min(s.scores + masked, s.Sq * s.Sk) * (s.Sq > 0 ? step * blocks / s.Sq : 1);
  out.multiplications = out.scores * columns;
  out.blocks = heads * blocks;
  if (backward) {
    const double runs =
        s.B * s.Hk >= 4.0 * machine.units || machine.units == 1
            ? 1
            : std::clamp(std::ceil(4.0 * machine.units / std::max(s.B * s.Hk, 1.0)), 1.0, std::max(std::ceil(s.Sk / 128), 1.0));
    out.tasks = s.B * s.Hk * runs;
    out.blocks *= runs;
    // q, do and o for each run of keys, dq from it; k and v for each block of queries; dk and dv are cleared and put.
    out.moved = heads * (runs * s.Sq * (3 * s.D + 3 * s.Dv) + blocks * s.Sk * (s.D + s.Dv)) + 2 * s.B * s.Hk * s.Sk * (s.D + s.Dv);
    return out;
  }
  const double together = std::clamp(std::ceil(blocks * heads / (4.0 * machine.units)), 1.0, real(attention_blocks));
  const double spans = std::ceil(blocks / together);
  out.tasks = heads * spans;
  out.moved = heads * (s.Sq * (s.D + s.Dv) + spans * s.Sk * (s.D + s.Dv));
  return out;
}

namespace {

double pass_us(const AttentionDescription& d, const Shape& s, const Machine& machine, bool backward) {
  const std::size_t dtype = machine.element != 2 ? 0 : machine.half == DType::f16 ? 1 : 2, direction = backward ? 1 : 0;
  const AttentionWork work = attention_work(d, s, machine, backward);
  const CpuFigures& core = machine.core;
  const AttentionCosts& costs =
      work.way == AttentionWork::Way::small_heads ? core.small_heads[dtype][direction] : core.attention[dtype][direction];
  double ns = work.multiplications * core.few_queries_ns[dtype];
  if (work.way != AttentionWork::Way::few_queries)
    ns = work.multiplications * costs.multiply_ns + work.scores * costs.score_ns + work.moved * costs.move_ns +
         work.blocks * costs.block_us * 1000;
  const double bytes = (backward ? 2 : 1) * (queries_bytes(s) + output_bytes(s) + keys_values_bytes(s));
  return machine.overhead_us + std::max(ns / 1000 * share_of(work.tasks, machine), bytes / machine.copy);
}

}  // namespace

ExplanationAlgorithm attention_on_cpu(const AttentionDescription& d, const Shape& s, const Machine& machine, double flops) {
  ExplanationAlgorithm out{.name = "flash2", .flops = flops};
  const std::int64_t queries = machine.tiles.front().m / 2 * attention_vectors;
  out.tile = {queries, attention_keys};
  out.bytes = whole(queries_bytes(s) + output_bytes(s) + 4 * s.B * s.Hq * s.Sq + keys_values_bytes(s));
  out.formula = "Q + O + LSE + K + V: scores stay in a core's caches";
  out.blocks = whole(s.B * s.Hq * std::ceil(s.Sq / real(queries)));
  out.waves = real(out.blocks) / machine.units;
  if (flops <= 0) return out;
  const double moves = queries_bytes(s) + output_bytes(s) + keys_values_bytes(s);
  out.time_us = std::max(pass_us(d, s, machine, false), std::max(flops / machine.peak, moves / machine.bandwidth));
  out.backward_time_us =
      std::max(pass_us(d, s, machine, true), std::max(2.5 * flops / machine.peak, 2 * moves / machine.bandwidth));
  return out;
}

}  // namespace everglow::plan
