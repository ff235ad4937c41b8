// What the recurrent rows share: the gates of a cell, the reading of lengths and resets, steps as rows of a matrix.
#pragma once

#include "core/rows.hpp"

#include <cstdint>

namespace everglow::recurrent {

/// Rows of w_ih and w_hh for one hidden unit.
constexpr std::int64_t gate_count(Cell cell) {
  if (cell == Cell::lstm) return 4;
  return cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1;
}

/// The size of h.
constexpr std::int64_t outputs_of(const RecurrentDescription& d) { return d.projection > 0 ? d.projection : d.hidden; }

/// One layer of a stack in a run, as the stepwise rows see it before they lay anything out.
struct LayerSizes {
  std::int64_t steps = 0, batch = 0, inputs = 0, hidden = 0, directions = 1;
  Cell cell = Cell::lstm;
  std::int64_t slots = 4;    // gates of a unit
  std::int64_t outputs = 0;  // O, the size of h
  bool projects = false;     // O is not H
  DType dtype = DType::f32;  // of x, h, y, weights and their gradients as the caller has them
  std::int64_t rows() const { return steps * batch; }
};
inline LayerSizes layer_sizes(const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  return {.steps = steps,
          .batch = batch,
          .inputs = d.inputs,
          .hidden = d.hidden,
          .directions = d.directions(),
          .cell = d.cell,
          .slots = gate_count(d.cell),
          .outputs = outputs_of(d),
          .projects = d.projection > 0,
          .dtype = d.dtype};
}

/// Valid steps of row b; all `steps` where no lengths are given.
inline std::int64_t length_of(const ConstTensorView& lengths, std::int64_t b, std::int64_t steps) {
  return lengths.given() ? static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]] : steps;
}

/// Whether a reset makes the state before a valid step of row b zero: the flag of edge t-1 | t stands at t, and the reverse
/// direction comes to a step over the edge behind it. Flags past the length are never read.
inline bool reset_before(const ConstTensorView& resets, std::int64_t direction, std::int64_t step, std::int64_t b,
                         std::int64_t length) {
  const std::int64_t edge = direction == 0 ? step : step + 1;
  return resets.given() && edge < length &&
         static_cast<const std::uint8_t*>(resets.data)[edge * resets.strides[0] + b * resets.strides[1]] != 0;
}

/// Rows of x or dx as one matrix where the strides allow, else as one matrix a step.
struct StepRows {
  std::int64_t stride = 0;
  bool folds = false;
};
inline StepRows step_rows(const ConstTensorView& view) {  // [T, B, n]
  const std::int64_t steps = view.size(0), batch = view.size(1);
  if (view.elements() == 0 || (steps == 1 && batch == 1)) return {view.size(2), true};
  const std::int64_t stride = batch > 1 ? view.stride(1) : view.stride(0);
  return {stride, batch == 1 || steps == 1 || view.stride(0) == batch * stride};
}

}  // namespace everglow::recurrent
