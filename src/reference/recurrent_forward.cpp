// A recurrent layer, forward, one row of the batch after the other.
#include "reference/recurrent_layer.hpp"

#include "core/mutant.hpp"

#include <algorithm>

namespace everglow::reference {
namespace {

struct Scratch {
  double* state = nullptr;   // [H], the LSTM's cell state
  double* before = nullptr;  // [O], h before a step
  double* out = nullptr;     // [H], what a cell puts out
  RecurrentReserve step;     // where nothing is kept
};

Scratch take_scratch(Arena& arena, const RecurrentDescription& d) {
  Scratch s;
  s.state = arena.take<double>(d.hidden);
  s.before = arena.take<double>(recurrent::outputs_of(d));
  s.out = arena.take<double>(d.hidden);
  if (!d.training) s.step = take_reserve(arena, d, 1, 1);
  return s;
}

struct Forward : RecurrentLayer<RecurrentForward> {
  RecurrentReserve reserve;
  Scratch scratch;

  /// One row of W x + b.
  double of_input(const RecurrentMatrices& m, const Walk& w, std::int64_t s, std::int64_t row) const {
    const ConstTensorView& bias = t.weights[static_cast<std::size_t>(w.direction)].b_ih;
    double total = bias.given() ? read(bias, row) : 0;
    for (std::int64_t i = 0; i < inputs; ++i) total += read(m.w_ih, row, i) * read(t.x, w.step(s), w.row, i);
    return total;
  }

  /// One row of R h + b'.
  double of_state(const RecurrentMatrices& m, const Walk& w, std::int64_t row) const {
    const ConstTensorView& bias = t.weights[static_cast<std::size_t>(w.direction)].b_hh;
    double total = bias.given() ? dropped("recurrent.reference_bias_of_state", read(bias, row)) : 0;
    for (std::int64_t j = 0; j < outputs; ++j) total += read(m.w_hh, row, j) * scratch.before[j];
    return total;
  }

  void lstm(const RecurrentMatrices& m, const Walk& w, std::int64_t s, double* gate, double* cell) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      const double z = of_input(m, w, s, row) + of_state(m, w, row);
      gate[row] = row / hidden == 2 ? std::tanh(z) : sigmoid(z);
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      scratch.state[j] = gate[hidden + j] * scratch.state[j] + gate[j] * gate[2 * hidden + j];
      cell[j] = scratch.state[j];
      scratch.out[j] = gate[3 * hidden + j] * std::tanh(scratch.state[j]);
    }
  }

  void gru(const RecurrentMatrices& m, const Walk& w, std::int64_t s, double* gate, double* cell) const {
    double* n = gate + 2 * hidden;
    for (std::int64_t row = 0; row < 2 * hidden; ++row) gate[row] = sigmoid(of_input(m, w, s, row) + of_state(m, w, row));
    if (d.cell == Cell::gru) {
      for (std::int64_t j = 0; j < hidden; ++j) {
        cell[j] = of_state(m, w, 2 * hidden + j);
        n[j] = std::tanh(of_input(m, w, s, 2 * hidden + j) + gate[j] * cell[j]);
      }
    } else {
      for (std::int64_t j = 0; j < hidden; ++j) scratch.before[j] *= gate[j];
      for (std::int64_t j = 0; j < hidden; ++j)
        n[j] = std::tanh(of_input(m, w, s, 2 * hidden + j) + of_state(m, w, 2 * hidden + j));
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double z = gate[hidden + j];
      scratch.out[j] = (1 - z) * n[j] + z * before(w, s, j);
    }
  }

  void plain(const RecurrentMatrices& m, const Walk& w, std::int64_t s, double* gate) const {
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double z = of_input(m, w, s, j) + of_state(m, w, j);
      scratch.out[j] = gate[j] = d.cell == Cell::tanh ? std::tanh(z) : z < 0 ? 0 : z;  // NaN stays NaN
    }
  }

  void step(const RecurrentMatrices& m, const Walk& w, std::int64_t s) const {
    const std::int64_t at = d.training ? place(w, s) : 0;
    double *gate = reserve.gates + rows * at, *cell = reserve.cells + hidden * at;
    for (std::int64_t j = 0; j < outputs; ++j) scratch.before[j] = before(w, s, j);
    if (reset(w, s)) std::fill(scratch.state, scratch.state + hidden, 0.0);
    if (d.cell == Cell::lstm)
      lstm(m, w, s, gate, cell);
    else if (recurrent::gate_count(d.cell) == 3)
      gru(m, w, s, gate, cell);
    else
      plain(m, w, s, gate);
    for (std::int64_t j = 0; j < outputs; ++j) {
      double h = d.projection > 0 ? 0 : scratch.out[j];
      for (std::int64_t k = 0; d.projection > 0 && k < hidden; ++k) h += read(m.w_hr, j, k) * scratch.out[k];
      write(t.y, h, w.step(s), w.row, w.direction * outputs + j);
    }
  }

  void run(const Walk& w) const {
    const RecurrentMatrices m = matrices(w.direction);
    for (std::int64_t j = 0; j < hidden; ++j) scratch.state[j] = read_or_zero(t.c0, w.direction, w.row, j);
    for (std::int64_t s = 0; s < w.length; ++s) step(m, w, s);
    for (std::int64_t j = 0; j < outputs; ++j) {
      for (std::int64_t past = w.length; past < steps; ++past) write(t.y, 0, past, w.row, w.direction * outputs + j);
      if (t.hn.given()) write(t.hn, state(w, w.length, j), w.direction, w.row, j);
    }
    for (std::int64_t j = 0; t.cn.given() && j < hidden; ++j) write(t.cn, scratch.state[j], w.direction, w.row, j);
  }
};

}  // namespace

void recurrent_forward(const RecurrentQuery& q, const RecurrentForward& t, void* workspace, const Stream&) {
  const RecurrentDescription& d = q.description;
  Arena arena(workspace), kept(d.training ? t.reserve.data : nullptr);
  const Scratch scratch = take_scratch(arena, d);
  Forward pass{{d, t}, d.training ? take_reserve(kept, d, t.x.size(0), t.x.size(1)) : scratch.step, scratch};
  for (std::int64_t direction = 0; direction < d.directions(); ++direction)
    for (std::int64_t b = 0; b < pass.batch; ++b) pass.run(pass.walk(direction, b));
}

std::size_t recurrent_forward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_scratch(arena, q.description);
  return arena.bytes();
}

}  // namespace everglow::reference
