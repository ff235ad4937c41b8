// One recurrent layer of the reference row: what its forward and backward pass share. h is rounded to the storage type, as y holds
// it; everything else, and all sums, are double.
#pragma once

#include "core/arena.hpp"
#include "core/recurrent.hpp"
#include "reference/element.hpp"

#include <cmath>

namespace everglow::reference {

/// What forward keeps for backward; with one step and one row it is the room of a run that keeps nothing.
struct RecurrentReserve {
  double* gates = nullptr;  // [directions, T, B, G·H], activated
  double* cells = nullptr;  // [directions, T, B, H]: LSTM the cell state, GRU what r multiplies
};
RecurrentReserve take_reserve(Arena& arena, const RecurrentDescription& d, std::int64_t steps, std::int64_t batch);

struct RecurrentMatrices {
  ConstTensorView w_ih;  // [G·H, I]
  ConstTensorView w_hh;  // [G·H, O]
  ConstTensorView w_hr;  // [P, H] with projection
};
/// The packed form is the matrices of each direction, dense and one after the other.
RecurrentMatrices packed_matrices(const RecurrentDescription& d, void* packed, std::int64_t direction);

/// The valid steps of one row of the batch in the order in which one direction sees them.
struct Walk {
  std::int64_t direction = 0, row = 0, length = 0;
  std::int64_t step(std::int64_t s) const { return direction == 0 ? s : length - 1 - s; }
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double read_or_zero(const ConstTensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
  return view.given() ? read(view, i, j, k) : 0;
}

/// `Tensors` is a RecurrentForward or a RecurrentBackward.
template <class Tensors>
struct RecurrentLayer {
  const RecurrentDescription& d;
  const Tensors& t;
  std::int64_t steps = t.x.size(0), batch = t.x.size(1), inputs = d.inputs, hidden = d.hidden;
  std::int64_t outputs = recurrent::outputs_of(d);               // O
  std::int64_t rows = recurrent::gate_count(d.cell) * d.hidden;  // G·H

  Walk walk(std::int64_t direction, std::int64_t row) const {
    return {direction, row, recurrent::length_of(t.lengths, row, steps)};
  }
  std::int64_t place(std::int64_t direction, std::int64_t step, std::int64_t row) const {
    return (direction * steps + step) * batch + row;
  }
  std::int64_t place(const Walk& w, std::int64_t s) const { return place(w.direction, w.step(s), w.row); }
  bool reset(const Walk& w, std::int64_t s) const {
    return recurrent::reset_before(t.resets, w.direction, w.step(s), w.row, w.length);
  }
  /// Element j of h after s steps of a walk: y of the last of them, else h0.
  double state(const Walk& w, std::int64_t s, std::int64_t j) const {
    return s > 0 ? read(t.y, w.step(s - 1), w.row, w.direction * outputs + j) : read_or_zero(t.h0, w.direction, w.row, j);
  }
  /// The same as the next step sees it.
  double before(const Walk& w, std::int64_t s, std::int64_t j) const { return reset(w, s) ? 0 : state(w, s, j); }
  RecurrentMatrices matrices(std::int64_t direction) const {
    if (t.packed != nullptr) return packed_matrices(d, t.packed->bytes.data, direction);
    const RecurrentWeights& w = t.weights[static_cast<std::size_t>(direction)];
    return {w.w_ih, w.w_hh, w.w_hr};
  }
};

void recurrent_forward(const RecurrentQuery& query, const RecurrentForward& tensors, void* workspace, const Stream&);
void recurrent_backward(const RecurrentQuery& query, const RecurrentBackward& tensors, void* workspace, const Stream&);
std::size_t recurrent_forward_bytes(const RecurrentQuery& query);
std::size_t recurrent_backward_bytes(const RecurrentQuery& query);

}  // namespace everglow::reference
