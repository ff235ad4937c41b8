// Where the recurrent matrix stays on chip: partitions of the hidden units over thread blocks, in groups that share the batch.
#include "plan/recurrent.hpp"

#include "core/recurrent.hpp"
#include "core/rounding.hpp"
#include "core/text.hpp"
#include "plan/calibration.hpp"
#include "plan/recurrent_cpu.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

namespace c = calibration;

double real(std::int64_t value) { return static_cast<double>(value); }

/// What a partition keeps and exchanges; sizes of one layer and direction.
struct Loop {
  std::int64_t hidden, state, rows_per_unit, element, batch, directions;
  std::int64_t bytes() const {
    return whole(static_cast<double>(hidden * rows_per_unit) * static_cast<double>(state) * static_cast<double>(element));
  }
};

Loop loop_of(const RecurrentDescription& d, std::int64_t batch, std::int64_t element) {
  // With a projection each unit also keeps its column of w_hr, as wide as the state.
  const std::int64_t rows = recurrent::gate_count(d.cell) + (d.projection > 0 ? 1 : 0);
  return {d.hidden, recurrent::outputs_of(d), rows, element, batch, d.directions()};
}

struct Chip {
  std::int64_t shared, registers, blocks, cluster;  // bytes for weights of a block; blocks that run at once
};

Chip chip_of(const DeviceFigures& f, std::int64_t directions) {
  const std::int64_t together = f.units >= c::sms_together ? f.units / c::sms_together * c::sms_together : f.units;
  return {std::max<std::int64_t>(f.shared_bytes - c::shared_not_weights, 0),
          f.capability >= 80 ? c::register_weights : c::register_weights_before_sm80,
          std::max<std::int64_t>(together / directions, 1), f.largest_cluster};
}

/// Bytes of the rows of one block, filled up to the 16 rows of a matrix instruction.
std::int64_t block_bytes(const Loop& loop, std::int64_t units) {
  return divided_up(units * loop.rows_per_unit, 16) * 16 * loop.state * loop.element;
}

double hand_off(std::span<const c::HandOff> table, std::int64_t blocks, const DeviceFigures& f) {
  const double us = std::find_if(table.begin(), table.end(), [&](const c::HandOff& h) { return blocks <= h.blocks; })->us;
  return f.capability >= 90 ? us : us * c::hand_off_before_sm90;
}

/// Time of one block's products of a step, with few rows of h.
double arithmetic_us(const Loop& loop, std::int64_t units, std::int64_t batch, const DeviceFigures& f, const Machine& machine) {
  const double rows = real(divided_up(units * loop.rows_per_unit, 16) * 16);
  const double columns = real(std::max<std::int64_t>(divided_up(batch, 8) * 8, 8));
  const double unit_rate = machine.rate / machine.units;
  if (machine.tensor && f.capability >= 90 && f.clock_ghz > 0) {
    const double clocks = std::max(c::wgmma_clocks + c::wgmma_clocks_per_n * columns, columns / 2 / c::wgmma_most);
    return std::ceil(rows / 64) * std::ceil(real(loop.state) / 16) * clocks / (f.clock_ghz * 1e3) + c::pointwise_us;
  }
  return 2 * rows * real(loop.state) * columns / (unit_rate * (machine.tensor ? c::small_mma_share : 1)) + c::pointwise_us;
}

/// One way to cut the hidden units, without words.
struct Partition {
  bool fits = false;
  std::int64_t units = 0, blocks = 0, groups = 0;
  double hand_off_us = 0, broadcast_us = 0, arithmetic_us = 0;
  double step_us() const { return hand_off_us + broadcast_us + arithmetic_us; }
};

/// The cost of a step when each block keeps `units`.
Partition partition(const Loop& loop, std::int64_t units, const DeviceFigures& f, const Machine& machine) {
  const Chip chip = chip_of(f, loop.directions);
  Partition out{.units = units, .blocks = divided_up(loop.hidden, units)};
  out.fits = block_bytes(loop, units) <= chip.shared + chip.registers && out.blocks <= chip.blocks;
  if (!out.fits) return out;
  out.groups = std::clamp<std::int64_t>(chip.blocks / out.blocks, 1, std::max<std::int64_t>(divided_up(loop.batch, 8), 1));
  const std::int64_t batch = divided_up(loop.batch, out.groups);
  if (out.blocks == 1) {
    out.hand_off_us = c::block_barrier_us;
  } else {
    const bool cluster = out.blocks <= chip.cluster;
    out.hand_off_us = cluster ? hand_off(c::cluster_hand_offs, out.blocks, f) : hand_off(c::grid_hand_offs, out.blocks, f);
    out.broadcast_us = c::broadcast_us_per_kib * real(batch) * real(loop.state * loop.element) / 1024;
  }
  out.arithmetic_us = arithmetic_us(loop, units, batch, f, machine);
  return out;
}

constexpr std::int64_t units_step = 4;  // an LSTM's four gates of four units fill the 16 rows of a matrix instruction

Partition best_partition(const Loop& loop, const DeviceFigures& f, const Machine& machine) {
  Partition best;
  for (std::int64_t units = units_step; units < loop.hidden + units_step; units += units_step) {
    const Partition here = partition(loop, std::min(units, loop.hidden), f, machine);
    if (here.fits && (!best.fits || here.step_us() < best.step_us())) best = here;
    if (block_bytes(loop, units) > f.shared_bytes + f.register_bytes) break;
  }
  return best;
}

std::int64_t largest_hidden(Loop loop, bool projects, const DeviceFigures& f) {
  const Chip chip = chip_of(f, loop.directions);
  std::int64_t best = 0;
  for (std::int64_t units = units_step; units <= 4096; units += units_step) {
    const std::int64_t rows = divided_up(units * loop.rows_per_unit, 16) * 16;
    // With a projection the state keeps its size, else it grows with the hidden units.
    std::int64_t hidden = units * chip.blocks;
    const std::int64_t state = (chip.shared + chip.registers) / (rows * loop.element);
    if (projects ? state < loop.state : state == 0) break;
    if (!projects) hidden = std::min(hidden, state);
    best = std::max(best, hidden / c::hidden_step * c::hidden_step);
  }
  return best;
}

ExplanationResidency on_gpu(const Loop& loop, bool projects, const DeviceFigures& f, const Machine& machine) {
  const Chip chip = chip_of(f, loop.directions);
  const Partition best = best_partition(loop, f, machine);
  ExplanationResidency out;
  out.largest_hidden = largest_hidden(loop, projects, f);
  out.resident = best.fits;
  if (!best.fits) return out;
  out.where.emplace_back("shared_memory");
  if (block_bytes(loop, best.units) > chip.shared) out.where.emplace_back("registers");
  if (best.blocks > 1) out.where.emplace_back(best.blocks <= chip.cluster ? "cluster" : "grid");
  out.blocks = best.blocks, out.units_per_block = best.units, out.groups = best.groups;
  out.hand_off_us = best.hand_off_us, out.broadcast_us = best.broadcast_us, out.arithmetic_us = best.arithmetic_us;
  out.step_us = best.step_us();
  return out;
}

ExplanationResidency on_cpu(const RecurrentDescription& d, const RecurrentSizes& sizes, const Loop& loop, const DeviceFigures& f,
                            const Machine& machine) {
  const double room = c::cpu_l2_share * real(f.l2.bytes) * machine.units;
  const auto matrix = [&](double hidden, double state) { return hidden * real(loop.rows_per_unit) * state * real(loop.element); };
  ExplanationResidency out;
  out.resident = matrix(real(loop.hidden), real(loop.state)) <= room;
  if (out.resident) out.where = {"l2"};
  out.groups = 1, out.blocks = machine.units;
  out.units_per_block = divided_up(loop.hidden, machine.units);
  const double ratio = loop.hidden > 0 ? real(loop.state) / real(loop.hidden) : 1;
  out.largest_hidden =
      static_cast<std::int64_t>(std::sqrt(room / (real(loop.rows_per_unit * loop.element) * std::max(ratio, 1e-9))));
  const CpuStep step = cpu_step(d, sizes, machine, false);
  out.hand_off_us = step.hand_off_us, out.broadcast_us = step.broadcast_us, out.arithmetic_us = step.arithmetic_us;
  out.step_us = step.us();
  return out;
}

std::string reason_of(const ExplanationResidency& r, const Loop& loop, const DeviceFigures& f, const Machine& machine) {
  const auto kib = [](double bytes) { return std::llround(bytes / 1024); };
  if (machine.cpu) {
    const auto each = kib(real(loop.bytes()) / machine.units), room = kib(c::cpu_l2_share * real(f.l2.bytes));
    return text(each, " KiB a core ", r.resident ? "fit the " : "exceed the ", room, " KiB of its L2 that weights may fill");
  }
  const Chip chip = chip_of(f, loop.directions);
  const std::string room = text(kib(real(chip.shared)), " KiB of shared memory and ", kib(real(chip.registers)),
                                " KiB of registers that hold weights in each of ", chip.blocks, " SMs");
  if (!r.resident) return text("its rows exceed the ", room);
  return text(kib(real(block_bytes(loop, r.units_per_block))), " KiB a block fit the ", room);
}

}  // namespace

bool fits_on_chip(const RecurrentDescription& d, const DeviceFigures& figures, std::int64_t element) {
  const Loop loop = loop_of(d, 0, element);
  const Chip chip = chip_of(figures, d.directions());
  for (std::int64_t units = units_step; block_bytes(loop, units) <= chip.shared + chip.registers; units += units_step)
    if (divided_up(loop.hidden, units) <= chip.blocks) return true;
  return loop.hidden == 0;
}

ExplanationResidency residency_of(const RecurrentDescription& d, const RecurrentSizes& sizes, const DeviceFigures& figures,
                                  const Machine& machine) {
  const std::int64_t batch = sizes.batch;
  const Loop loop = loop_of(d, batch, machine.element);
  ExplanationResidency out;
  if (machine.cpu) {
    out = on_cpu(d, sizes, loop, figures, machine);
  } else {
    out = on_gpu(loop, d.projection > 0, figures, machine);
    if (!out.resident) {
      const Product step{recurrent::gate_count(d.cell) * d.hidden, batch, loop.state, alignment_of(loop.state * loop.element)};
      out.arithmetic_us = predict(machine, step).time_us;
      if (d.projection > 0) out.arithmetic_us += predict(machine, {d.projection, batch, d.hidden}).time_us;
      out.hand_off_us = std::max(c::standard_gates_us, c::standard_step_us - out.arithmetic_us);
      out.step_us = out.arithmetic_us + out.hand_off_us;
    }
  }
  out.bytes = loop.bytes();
  out.step_floor_us = 2 * real(batch) * real(loop.hidden) * real(loop.rows_per_unit) * real(loop.state) / machine.peak;
  out.reason = reason_of(out, loop, figures, machine);
  return out;
}

}  // namespace everglow::plan
