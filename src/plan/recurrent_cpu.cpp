// The time of recurrent layers on a CPU: weights laid out anew in each run, a product over the inputs of all steps, the loop over
// packed weights, and on the way back the products over all steps again. The order is that of src/cpu/recurrent_*.cpp.
#include "plan/recurrent_cpu.hpp"

#include "core/recurrent.hpp"
#include "plan/calibration.hpp"
#include "plan/cpu.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

namespace c = calibration;

double real(std::int64_t value) { return static_cast<double>(value); }
std::size_t cell_index(Cell cell) { return std::min<std::size_t>(static_cast<std::size_t>(cell), 3); }

/// Bytes of the recurrent weights that one thread reads in a step.
double bytes_of_a_thread(const CpuLoop& loop, double elements, const Machine& machine) {
  return elements * real(machine.element) / (loop.by_rows ? 1 : loop.threads);
}

/// What an element of packed weights costs more where they come from further away than L2.
double further_ns(const CpuLoop& loop, double bytes, const Machine& machine) {
  const double l2 = machine.cache_bandwidth / machine.units, l3 = machine.last_bandwidth / machine.units;  // bytes/us of one core
  const double each = real(machine.cache) / machine.units;
  if (bytes <= each) return 0;
  const double all = bytes * (loop.by_rows ? 1 : loop.threads);
  const double from = all <= real(machine.last_cache) ? l3 : std::min(l3, machine.copy / loop.team);
  // What fits still comes from L2.
  const double outside = std::min(1.0, 2 * (bytes - each) / bytes);
  return std::max(0.0, 1e3 * real(machine.element) * (1 / from - 1 / l2)) * outside;
}

struct Elements {
  double direct, all;  // of the recurrent weights of a direction: those of h itself, and with candidate and projection
};
Elements elements_of(const RecurrentDescription& d) {
  const double H = real(d.hidden), P = real(recurrent::outputs_of(d)), gates = real(recurrent::gate_count(d.cell));
  const double direct = d.cell == Cell::gru_reset_before ? gates - 1 : gates;
  return {direct * H * P, gates * H * P + (d.projection > 0 ? P * H : 0)};
}

double padded(std::int64_t units) { return std::ceil(real(units) / c::cell_units) * c::cell_units; }

}  // namespace

CpuLoop cpu_loop(const RecurrentDescription& d, const RecurrentSizes& sizes, const Machine& machine) {
  const double work = 2 * real(recurrent::gate_count(d.cell)) * real(sizes.steps) * real(sizes.batch) * real(d.directions()) *
                      real(d.hidden) * real(d.hidden);
  CpuLoop out;
  out.team = static_cast<int>(std::clamp(work / real(loop_work_of_a_thread), 1.0, static_cast<double>(machine.units)));
  const int share = out.team == 1 ? 1 : std::max(out.team / static_cast<int>(d.directions()), 1);
  out.by_rows = sizes.batch >= loop_rows_of_a_thread * share || padded(d.hidden) <= c::cell_units;
  const std::int64_t most = out.by_rows ? sizes.batch : static_cast<std::int64_t>(padded(d.hidden) / c::cell_units);
  out.threads = static_cast<int>(std::clamp<std::int64_t>(most, 1, share));
  out.in_turn = out.team == 1 ? static_cast<int>(d.directions()) : 1;
  // Cores that share units or clocks slow one another down.
  out.slower = out.team / speedup_of(machine.core, out.team);
  return out;
}

double cpu_loop_product_us(const CpuLoop& loop, const Machine& machine, double weights, const LoopProduct& p) {
  const std::size_t d = static_cast<std::size_t>(machine.element == 4 ? 0 : machine.half == DType::f16 ? 1 : 2);
  const ProductCosts& step = machine.core.step[d];
  const double rows = loop.by_rows ? std::ceil(p.rows / loop.threads) : p.rows;
  const double columns = loop.by_rows ? p.columns : std::ceil(p.columns / loop.threads / c::cell_units) * c::cell_units;
  const double passes = std::max(std::ceil(rows / real(step_rows)), 1.0);
  const double far = further_ns(loop, bytes_of_a_thread(loop, weights, machine), machine);
  ProductCosts costs = step;
  if (p.wide) costs.multiply_ns = std::max(step.multiply_ns, machine.core.step[0].multiply_ns);
  costs.b_ns = (step.b_ns + far) * passes;
  return cost_us(costs, rows, columns, p.depth) * loop.slower;
}

CpuStep cpu_step(const RecurrentDescription& d, const RecurrentSizes& sizes, const Machine& machine, bool backward) {
  const CpuLoop loop = cpu_loop(d, sizes, machine);
  const Elements weights = elements_of(d);
  const double B = real(sizes.batch), H = padded(d.hidden), P = padded(recurrent::outputs_of(d));
  const double gates = real(recurrent::gate_count(d.cell)), direct = d.cell == Cell::gru_reset_before ? gates - 1 : gates;
  // h is as it is stored; gradients, r h before a product and what a projection reads are f32.
  const auto product = [&](double columns, double depth, bool of_h) {
    return cpu_loop_product_us(loop, machine, weights.all,
                               {B, backward ? depth : columns, backward ? columns : depth, backward || !of_h});
  };
  const double rows = loop.by_rows ? std::ceil(B / loop.threads) : B;
  const double units = loop.by_rows ? H : std::ceil(H / loop.threads / c::cell_units) * c::cell_units;
  CpuStep out;
  out.arithmetic_us = product(direct * H, P, true);
  if (d.cell == Cell::gru_reset_before) out.arithmetic_us += product(H, H, false);
  if (d.projection > 0) out.arithmetic_us += product(P, H, false);
  const double stored = machine.element == 2 && !backward ? c::stored_unit_clocks * machine.core.exponential_ns : 0;
  out.arithmetic_us += rows * units * (machine.core.cell_ns[cell_index(d.cell)][backward ? 1 : 0] + stored) / 1000 * loop.slower;
  const bool meets = !loop.by_rows && loop.threads > 1;
  const double meetings = 1 + (d.cell == Cell::gru_reset_before ? 1 : 0) + (d.projection > 0 ? 1 : 0);
  if (meets) {
    out.hand_off_us = meetings * machine.core.hand_off_us;
    out.broadcast_us = B * P * 4 / machine.last_bandwidth;
  }
  out.arithmetic_us *= loop.in_turn, out.hand_off_us *= loop.in_turn, out.broadcast_us *= loop.in_turn;
  return out;
}

namespace {

/// Weights in the order of the loop, and packed: of one layer, in one run.
double layout_us(const RecurrentDescription& d, std::int64_t inputs, const Machine& machine, bool backward, bool packs_inputs) {
  const double directions = real(d.directions()), rows = real(recurrent::gate_count(d.cell)) * padded(d.hidden);
  const double of_inputs = rows * real(inputs), of_state = elements_of(d).all;
  const double copied = real(machine.element) * directions * (of_inputs + of_state);
  const std::size_t dtype = machine.element == 4 ? 0 : machine.half == DType::f16 ? 1 : 2;
  const double pack_ns = machine.core.pack_ns[dtype][backward ? 0 : 1];
  const double state = of_state * pack_ns / 1000, input = packs_inputs ? directions * of_inputs * pack_ns / 1000 : 0;
  // One matrix is packed by one thread.
  const double packed = std::max({state, input, (directions * state + input) / machine.speedup});
  const double forks = machine.units > 1 ? 3 * machine.core.fork_us : 0;
  // They come from memory and go to scratch that the last run left in a cache.
  return copied / machine.copy + cpu_stream_us(machine, copied) + packed + forks;
}

}  // namespace

CpuPasses cpu_layer(const RecurrentDescription& d, const RecurrentSizes& sizes, std::int64_t inputs, const Machine& machine) {
  CpuPasses out;
  if (d.hidden == 0 || sizes.batch == 0 || sizes.steps == 0) return out;
  const double T = real(sizes.steps), directions = real(d.directions()), rows = T * real(sizes.batch);
  const double gates = real(recurrent::gate_count(d.cell)) * padded(d.hidden) * directions, units = padded(d.hidden) * directions;
  const bool cells = d.cell == Cell::lstm || d.cell == Cell::gru;
  const double state = (gates + (cells ? units : 0)) * 4;  // bytes of a row that training keeps
  const bool library = machine.library && rows >= real(library_rows);
  const double fork = machine.units > 1 ? machine.core.fork_us : 0;
  const double forward_bytes = rows * ((d.training ? state : 4 * gates) + 4 * gates + real(machine.element) * units);
  out.forward_us = layout_us(d, inputs, machine, false, !library) + T * cpu_step(d, sizes, machine, false).us() +
                   cpu_stream_us(machine, forward_bytes) + fork;
  if (!d.training) return out;
  // Gates are read and their gradients written in the loop; these are read once more for the biases, h before each step is
  // written, and the gradients of the weights are brought into the caller's order.
  const double apart = d.cell == Cell::gru ? 2 : 1;
  const double weights = directions * (elements_of(d).all + gates / directions * real(inputs));
  out.backward_us = layout_us(d, inputs, machine, true, false) + T * cpu_step(d, sizes, machine, true).us() +
                    cpu_stream_us(machine, rows * (state + 4 * gates * apart)) + cpu_stream_us(machine, rows * 4 * gates * apart) +
                    cpu_stream_us(machine, rows * units * (4 + real(machine.element))) +
                    weights * real(machine.element) / machine.copy + cpu_stream_us(machine, 4 * weights) +
                    fork * (2 + 3 * directions);
  return out;
}

}  // namespace everglow::plan
