// Times recurrent cells and attention at sizes of which two differ in one thing, and fits their costs.
#include "cli/fit.hpp"
#include "cli/layer_runs.hpp"
#include "cli/probe.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::cli {
namespace {

constexpr Lap lap_of_layer{.samples = 3, .least_us = 200, .most_samples = 12};
const PlanOptions one_thread{.threads = 1};

constexpr Cell cells[] = {Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::tanh};

double real(std::int64_t value) { return static_cast<double>(value); }

struct CellSizes {
  std::int64_t hidden, batch, steps;
};
/// Hidden units are cheap beside the recurrent product where they are few.
constexpr CellSizes cell_sizes[] = {{32, 32, 8}, {64, 32, 8}, {128, 32, 8}, {64, 8, 8}, {64, 32, 2}};

struct AttentionCase {
  std::int64_t batch, heads, length, head_dim;
};
/// Whole blocks of queries in any instruction set, and more keys than small heads have.
constexpr AttentionCase block_cases[] = {{1, 2, 128, 64}, {1, 2, 128, 32}, {1, 2, 128, 128},
                                         {1, 2, 320, 64}, {1, 2, 512, 32}, {4, 2, 128, 16}};
constexpr AttentionCase few_cases[] = {{1, 8, 1024, 64}, {1, 8, 512, 128}};

/// Keys and queries of small heads: parts of the largest block, four vectors.
std::vector<AttentionCase> small_cases() {
  const std::string isa = DeviceDescription(Device::cpu()).isa;
  const std::int64_t block = isa == "portable" ? 16 : isa == "avx2" ? 32 : 64;
  return {{8, 4, block / 4, 64}, {8, 4, block / 2, 64},  {4, 4, block, 64},
          {4, 4, block, 32},     {4, 4, block / 2, 128}, {2, 4, block, 128}};
}

/// On one thread, as src/plan/attention_cpu.cpp counts them: multiply-adds, scores, elements of rows that move, blocks.
std::vector<double> attention_counts(const AttentionCase& c, bool backward, bool small) {
  const double heads = real(c.batch * c.heads), S = real(c.length), D = real(c.head_dim), scores = heads * S * S;
  const double vector = real(small_cases()[2].length), blocks = small ? 1 : S / vector;
  // Up to four blocks of queries share keys, and as many tasks as there are heads and blocks are wanted.
  const double together = std::clamp(std::ceil(blocks * heads / 4), 1.0, 4.0), spans = std::ceil(blocks / together);
  double moved = heads * (S * 2 * D + spans * S * 2 * D);
  if (small) moved = (backward ? 2 : 1) * heads * 2 * S * 2 * D;
  if (!small && backward) moved = heads * (S * 6 * D + (blocks + 2) * S * 2 * D);
  return {1, scores * (backward ? 5 : 2) * D / 1000, scores / 1000, moved / 1000, heads * blocks};
}

AttentionDescription attention(const AttentionCase& c, DType dtype) {
  return {.heads = c.heads, .head_dim = c.head_dim, .dtype = dtype, .training = true};
}

/// Softmax of rows that stay in a cache: an exponential an element.
constexpr std::int64_t softmax_rows = 64, softmax_columns = 256;

std::function<void(std::int64_t)> softmax_run(OperandMemory& memory) {
  struct Layer {
    explicit Layer(OperandMemory& m)
        : plan({.dtype = DType::f32}, {softmax_rows, softmax_columns}, Device::cpu(), one_thread), tensors(m, true) {
      x = tensors.read(DType::f32, {softmax_rows, softmax_columns}),
      y = tensors.written(DType::f32, {softmax_rows, softmax_columns});
      tensors.seal();
    }
    SoftmaxPlan plan;
    Operands tensors;
    int x, y;
  };
  const auto layer = std::make_shared<Layer>(memory);
  return [layer](std::int64_t) {
    layer->plan.forward({.x = layer->tensors.at(layer->x, 0), .y = layer->tensors.at(layer->y, 0)}, {});
  };
}

}  // namespace

LayerProbe::LayerProbe(OperandMemory& memory) {
  add_cells(memory);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    add_attention(memory, dtype);
    add_few_queries(memory, dtype);
  }
  softmax_ = std::make_unique<Stopwatch>(softmax_run(memory));
}

void LayerProbe::add_cells(OperandMemory& memory) {
  for (std::size_t cell = 0; cell < std::size(cells); ++cell)
    for (const CellSizes& s : cell_sizes) {
      const RecurrentDescription d{.cell = cells[cell], .inputs = 1, .hidden = s.hidden, .training = true};
      const auto runs = recurrent_runs(memory, d, {s.steps, s.batch}, one_thread);
      const double units = real(s.steps * s.batch * s.hidden), square = real(s.hidden * s.hidden);
      // A call, units, the products of the loop, and the weights that each run lays out.
      for (std::size_t direction = 0; direction < runs.size(); ++direction)
        cells_.push_back(
            {cell, direction, {1, units / 1000, units * real(s.hidden) / 1000, square / 1000}, Stopwatch(runs[direction].run)});
    }
}

void LayerProbe::add_attention(OperandMemory& memory, DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  const auto add = [&](const AttentionCase& c, bool small) {
    const AttentionSizes sizes{.batch = c.batch, .queries = c.length, .keys = c.length};
    const auto runs = attention_runs(memory, attention(c, dtype), sizes, one_thread);
    for (std::size_t direction = 0; direction < runs.size(); ++direction)
      (small ? small_ : blocks_)
          .push_back({index, direction, attention_counts(c, direction == 1, small), Stopwatch(runs[direction].run)});
  };
  for (const AttentionCase& c : block_cases) add(c, false);
  for (const AttentionCase& c : small_cases()) add(c, true);
}

void LayerProbe::add_few_queries(OperandMemory& memory, DType dtype) {
  for (const AttentionCase& c : few_cases) {
    const auto runs = attention_runs(memory, attention(c, dtype), {.batch = c.batch, .queries = 1, .keys = c.length}, one_thread);
    const double multiplications = real(c.batch * c.heads * c.length) * real(2 * c.head_dim);
    few_.push_back({static_cast<std::size_t>(dtype), 0, {multiplications / 1000}, Stopwatch(runs.front().run)});
  }
}

void LayerProbe::lap() {
  for (auto* all : {&cells_, &blocks_, &small_, &few_})
    for (Timed& timed : *all) timed.watch.lap(lap_of_layer);
  softmax_->lap(lap_of_layer);
}

std::vector<double> LayerProbe::fit(const std::vector<Timed>& all, std::size_t which, std::size_t direction) {
  std::vector<Counted> calls;
  for (const Timed& timed : all)
    if (timed.which == which && timed.direction == direction) calls.push_back({timed.counts, timed.watch.us()});
  return fit_costs(calls);
}

void LayerProbe::put(DeviceFigures& figures) const {
  CpuFigures& out = figures.cpu;
  for (std::size_t cell = 0; cell < std::size(cells); ++cell)
    for (std::size_t direction = 0; direction < 2; ++direction) out.cell_ns[cell][direction] = fit(cells_, cell, direction)[1];
  for (std::size_t d = 0; d < 3; ++d) {
    const std::size_t measured = d == 0 ? 0 : 2;  // f16 is converted as bf16 is
    for (std::size_t direction = 0; direction < 2; ++direction) {
      const auto costs = [&](const std::vector<Timed>& all) {
        const std::vector<double> found = fit(all, measured, direction);
        return AttentionCosts{found[1], found[2], found[3], found[4]};
      };
      out.attention[d][direction] = costs(blocks_), out.small_heads[d][direction] = costs(small_);
    }
    out.few_queries_ns[d] = fit(few_, measured, 0)[0];
  }
  out.exponential_ns = 1000 * softmax_->us() / static_cast<double>(softmax_rows * softmax_columns);
}

}  // namespace everglow::cli
