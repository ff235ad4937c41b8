// A recurrent layer, backward: the steps of each row in the opposite order, then the sums over all steps.
#include "reference/recurrent_layer.hpp"

#include "core/mutant.hpp"

#include <algorithm>

namespace everglow::reference {
namespace {

struct Scratch {
  double* dz = nullptr;         // [directions, T, B, G·H], gradients before the activations; 0 past a length
  double* projected = nullptr;  // [directions, T, B, P], of h where there is a projection
  double* dh = nullptr;         // [O], of h after a step
  double* dc = nullptr;         // [H], of the LSTM's cell state after a step
  double* out = nullptr;        // [H], of what the cell put out
  double* carried = nullptr;    // [O], of h before a step
  double* mixed = nullptr;      // [H], of r h where the reset comes before the product
};

Scratch take_scratch(Arena& arena, const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  const std::int64_t places = d.directions() * steps * batch, outputs = recurrent::outputs_of(d);
  Scratch s;
  s.dz = arena.take<double>(places * recurrent::gate_count(d.cell) * d.hidden);
  s.projected = arena.take<double>(places * d.projection);
  s.dh = arena.take<double>(outputs), s.dc = arena.take<double>(d.hidden);
  s.out = arena.take<double>(d.hidden), s.carried = arena.take<double>(outputs), s.mixed = arena.take<double>(d.hidden);
  return s;
}

struct Backward : RecurrentLayer<RecurrentBackward> {
  RecurrentReserve reserve;
  Scratch scratch;

  const double* gates(std::int64_t at) const { return reserve.gates + rows * at; }
  double* dz(std::int64_t at) const { return scratch.dz + rows * at; }
  /// The gradient of one row of R h + b': that of W x + b, but for the candidate of a GRU that resets after the product.
  double of_state(std::int64_t at, std::int64_t row) const {
    const double value = dz(at)[row];
    const bool resets = d.cell == Cell::gru && row >= 2 * hidden && !mutant("recurrent.reference_gru_of_state");
    return resets ? value * gates(at)[row - 2 * hidden] : value;
  }
  /// What multiplied column j of one row of R.
  double factor(const Walk& w, std::int64_t s, std::int64_t row, std::int64_t j) const {
    const double h = before(w, s, j);
    return d.cell == Cell::gru_reset_before && row >= 2 * hidden ? h * gates(place(w, s))[j] : h;
  }
  double lstm_out(std::int64_t at, std::int64_t j) const {
    return gates(at)[3 * hidden + j] * std::tanh(reserve.cells[hidden * at + j]);
  }

  void lstm(const Walk& w, std::int64_t s) const {
    const std::int64_t at = place(w, s);
    const double* gate = gates(at);
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double i = gate[j], f = gate[hidden + j], g = gate[2 * hidden + j], o = gate[3 * hidden + j];
      double cell = s > 0 ? reserve.cells[hidden * place(w, s - 1) + j] : read_or_zero(t.c0, w.direction, w.row, j);
      if (reset(w, s)) cell = 0;
      const double squashed = std::tanh(reserve.cells[hidden * at + j]), dh = scratch.out[j];
      const double dc = scratch.dc[j] + dh * o * (1 - squashed * squashed);
      dz(at)[j] = dc * g * i * (1 - i);
      dz(at)[hidden + j] = dc * cell * f * (1 - f);
      dz(at)[2 * hidden + j] = flipped("recurrent.reference_candidate", dc * i * (1 - g * g));
      dz(at)[3 * hidden + j] = dh * squashed * o * (1 - o);
      scratch.dc[j] = dc * f;
    }
  }

  void gru(const Walk& w, std::int64_t s, const ConstTensorView& r_matrix) const {
    const std::int64_t at = place(w, s);
    const double* gate = gates(at);
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double z = gate[hidden + j], n = gate[2 * hidden + j], dh = scratch.out[j];
      dz(at)[2 * hidden + j] = dh * (1 - z) * (1 - n * n);
      dz(at)[hidden + j] = dh * (before(w, s, j) - n) * z * (1 - z);
      scratch.carried[j] = dh * z;
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double r = gate[j];
      double dr = 0;
      if (d.cell == Cell::gru) {
        dr = dz(at)[2 * hidden + j] * reserve.cells[hidden * at + j];
      } else {
        double mixed = 0;
        for (std::int64_t k = 0; k < hidden; ++k) mixed += dz(at)[2 * hidden + k] * read(r_matrix, 2 * hidden + k, j);
        dr = mixed * before(w, s, j);
        scratch.carried[j] += dropped("recurrent.reference_mixed", mixed * r);
      }
      dz(at)[j] = dr * r * (1 - r);
    }
  }

  void plain(std::int64_t at) const {
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double h = gates(at)[j];
      dz(at)[j] = scratch.out[j] * (d.cell == Cell::tanh ? 1 - h * h : h > 0 ? 1.0 : 0.0);
    }
  }

  /// dz of one step from dh and dc, which become those before the step.
  void step(const RecurrentMatrices& m, const Walk& w, std::int64_t s) const {
    const std::int64_t at = place(w, s);
    for (std::int64_t j = 0; j < outputs; ++j) {
      scratch.dh[j] += read_or_zero(t.dy, w.step(s), w.row, w.direction * outputs + j);
      scratch.carried[j] = 0;
      if (d.projection > 0) scratch.projected[outputs * at + j] = scratch.dh[j];
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      scratch.out[j] = d.projection > 0 ? 0 : scratch.dh[j];
      for (std::int64_t p = 0; p < d.projection; ++p) scratch.out[j] += scratch.dh[p] * read(m.w_hr, p, j);
    }
    if (d.cell == Cell::lstm)
      lstm(w, s);
    else if (recurrent::gate_count(d.cell) == 3)
      gru(w, s, m.w_hh);
    else
      plain(at);
    // where the reset comes before the product, the candidate's part is in `carried` already
    const std::int64_t through = d.cell == Cell::gru_reset_before ? 2 * hidden : rows;
    for (std::int64_t j = 0; j < outputs; ++j) {
      scratch.dh[j] = scratch.carried[j];
      for (std::int64_t row = 0; row < through; ++row) scratch.dh[j] += of_state(at, row) * read(m.w_hh, row, j);
    }
    if (!reset(w, s) || mutant("recurrent.reference_reset")) return;
    std::fill(scratch.dh, scratch.dh + outputs, 0.0);
    std::fill(scratch.dc, scratch.dc + hidden, 0.0);
  }

  void run(const Walk& w) const {
    const RecurrentMatrices m = matrices(w.direction);
    for (std::int64_t j = 0; j < outputs; ++j) scratch.dh[j] = read_or_zero(t.dhn, w.direction, w.row, j);
    for (std::int64_t j = 0; j < hidden; ++j) scratch.dc[j] = read_or_zero(t.dcn, w.direction, w.row, j);
    for (std::int64_t s = w.length - 1; s >= 0; --s) step(m, w, s);
    for (std::int64_t past = w.length; past < steps; ++past) std::fill_n(dz(place(w.direction, past, w.row)), rows, 0.0);
    for (std::int64_t j = 0; t.dh0.given() && j < outputs; ++j) write(t.dh0, scratch.dh[j], w.direction, w.row, j);
    for (std::int64_t j = 0; t.dc0.given() && j < hidden; ++j) write(t.dc0, scratch.dc[j], w.direction, w.row, j);
  }

  /// The sum of term(walk, s, place) over all valid steps of all rows.
  template <class Term>
  double over_steps(std::int64_t direction, const Term& term) const {
    double sum = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      const Walk w = walk(direction, b);
      for (std::int64_t s = 0; s < w.length; ++s) sum += term(w, s, place(w, s));
    }
    return sum;
  }

  template <class... Index>
  void add(const TensorView& to, double value, Index... at) const {
    write(to, value + (t.accumulate ? read(to, at...) : 0), at...);
  }

  void gate_weights(std::int64_t direction, std::int64_t row, const RecurrentWeightGradients& out) const {
    for (std::int64_t i = 0; out.w_ih.given() && i < inputs; ++i)
      add(out.w_ih,
          over_steps(direction,
                     [&](const Walk& w, std::int64_t s, std::int64_t at) { return dz(at)[row] * read(t.x, w.step(s), w.row, i); }),
          row, i);
    for (std::int64_t j = 0; out.w_hh.given() && j < outputs; ++j)
      add(out.w_hh,
          over_steps(direction,
                     [&](const Walk& w, std::int64_t s, std::int64_t at) { return of_state(at, row) * factor(w, s, row, j); }),
          row, j);
    if (out.b_ih.given())
      add(out.b_ih, over_steps(direction, [&](const Walk&, std::int64_t, std::int64_t at) { return dz(at)[row]; }), row);
    if (out.b_hh.given())
      add(out.b_hh, over_steps(direction, [&](const Walk&, std::int64_t, std::int64_t at) { return of_state(at, row); }), row);
  }

  void weights(std::int64_t direction, const RecurrentWeightGradients& out) const {
    for (std::int64_t row = 0; row < rows; ++row) gate_weights(direction, row, out);
    for (std::int64_t p = 0; out.w_hr.given() && p < outputs; ++p)
      for (std::int64_t j = 0; j < hidden; ++j)
        add(out.w_hr,
            over_steps(direction, [&](const Walk&, std::int64_t,
                                      std::int64_t at) { return scratch.projected[outputs * at + p] * lstm_out(at, j); }),
            p, j);
  }

  void input_gradients() const {
    for (std::int64_t step = 0; step < steps; ++step)
      for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t i = 0; i < inputs; ++i) {
          const bool valid = step < recurrent::length_of(t.lengths, b, steps);
          double sum = 0;
          for (std::int64_t direction = 0; valid && direction < d.directions(); ++direction) {
            const ConstTensorView w = matrices(direction).w_ih;
            const double* row_dz = dz(place(direction, step, b));
            for (std::int64_t row = 0; row < rows; ++row) sum += flipped("recurrent.reference_dx", row_dz[row]) * read(w, row, i);
          }
          write(t.dx, sum, step, b, i);
        }
  }
};

}  // namespace

void recurrent_backward(const RecurrentQuery& q, const RecurrentBackward& t, void* workspace, const Stream&) {
  const RecurrentDescription& d = q.description;
  const std::int64_t steps = t.x.size(0), batch = t.x.size(1);
  // The reserve is only read; the arena that finds its parts hands out mutable pointers.
  Arena arena(workspace), kept(const_cast<void*>(t.reserve.data));
  const Backward pass{{d, t}, take_reserve(kept, d, steps, batch), take_scratch(arena, d, steps, batch)};
  for (std::int64_t direction = 0; direction < d.directions(); ++direction)
    for (std::int64_t b = 0; b < batch; ++b) pass.run(pass.walk(direction, b));
  for (std::size_t direction = 0; direction < t.dweights.size(); ++direction)
    pass.weights(static_cast<std::int64_t>(direction), t.dweights[direction]);
  if (t.dx.given()) pass.input_gradients();
}

std::size_t recurrent_backward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_scratch(arena, q.description, q.sizes.steps, q.sizes.batch);
  return arena.bytes();
}

}  // namespace everglow::reference
