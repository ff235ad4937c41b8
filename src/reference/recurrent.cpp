// LSTM in plain loops, one row of the batch after the other: h is rounded to the storage type as y holds it, the cell state and all
// sums are double. The reserve holds the gates [directions, T, B, 4H] and cell states [directions, T, B, H] as double.
#include "core/recurrent.hpp"
#include "core/arena.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace everglow::reference {
namespace {

struct Reserve {
  double* gates = nullptr;  // [directions, T, B, 4H]: i, f, g, o
  double* cells = nullptr;  // [directions, T, B, H]
};

Reserve take_reserve(Arena& arena, const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  const std::int64_t units = d.directions() * steps * batch * d.hidden;
  return {arena.take<double>(4 * units), arena.take<double>(units)};
}

struct Matrices {
  ConstTensorView w_ih;  // [4H, I]
  ConstTensorView w_hh;  // [4H, H]
};

/// The packed form is the two matrices of each direction, dense and one after the other.
Matrices packed_matrices(const RecurrentDescription& d, void* packed, std::int64_t direction) {
  const std::int64_t rows = 4 * d.hidden, all = rows * (d.inputs + d.hidden);
  auto* start = static_cast<std::byte*>(packed) + static_cast<std::size_t>(direction * all) * size_of(d.dtype);
  return {ConstTensorView(start, d.dtype, {rows, d.inputs}),
          ConstTensorView(start + static_cast<std::size_t>(rows * d.inputs) * size_of(d.dtype), d.dtype, {rows, d.hidden})};
}

Matrices matrices(const RecurrentDescription& d, const PackedWeights* packed, const RecurrentWeights& w, std::int64_t direction) {
  return packed != nullptr ? packed_matrices(d, packed->bytes.data, direction) : Matrices{w.w_ih, w.w_hh};
}

/// The valid steps of one row of the batch in the order in which one direction sees them.
struct Walk {
  std::int64_t direction = 0, row = 0, length = 0;
  std::int64_t step(std::int64_t s) const { return direction == 0 ? s : length - 1 - s; }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double read_or_zero(const ConstTensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
  return view.given() ? read(view, i, j, k) : 0;
}

struct Forward {
  const RecurrentDescription& d;
  const RecurrentForward& t;
  Reserve reserve;  // of this run, or of one row's single step where the plan does not train
  bool keep = false;
  double* state = nullptr;  // [H], the cell state of the row

  std::int64_t unit(const Walk& w, std::int64_t step) const {
    return keep ? ((w.direction * t.x.size(0) + step) * t.x.size(1) + w.row) * d.hidden : 0;
  }

  /// h before the s-th step of a walk: y of the step before, else h0.
  double previous(const Walk& w, std::int64_t s, std::int64_t j) const {
    return s > 0 ? read(t.y, w.step(s - 1), w.row, w.direction * d.hidden + j) : read_or_zero(t.h0, w.direction, w.row, j);
  }

  double sum(const Matrices& m, const RecurrentWeights& bias, const Walk& w, std::int64_t s, std::int64_t row) const {
    double total = (bias.b_ih.given() ? read(bias.b_ih, row) : 0) + (bias.b_hh.given() ? read(bias.b_hh, row) : 0);
    for (std::int64_t i = 0; i < d.inputs; ++i) total += read(m.w_ih, row, i) * read(t.x, w.step(s), w.row, i);
    for (std::int64_t j = 0; j < d.hidden; ++j) total += read(m.w_hh, row, j) * previous(w, s, j);
    return total;
  }

  void run(const Walk& w) const {
    const std::int64_t hidden = d.hidden;
    const RecurrentWeights& weights = t.weights[static_cast<std::size_t>(w.direction)];
    const Matrices m = matrices(d, t.packed, weights, w.direction);
    for (std::int64_t j = 0; j < hidden; ++j) state[j] = read_or_zero(t.c0, w.direction, w.row, j);
    for (std::int64_t s = 0; s < w.length; ++s) {
      const std::int64_t at = unit(w, w.step(s));
      double* gate = reserve.gates + 4 * at;
      for (std::int64_t row = 0; row < 4 * hidden; ++row) {
        const double z = sum(m, weights, w, s, row);
        gate[row] = row / hidden == 2 ? std::tanh(z) : sigmoid(z);
      }
      for (std::int64_t j = 0; j < hidden; ++j) {
        state[j] = gate[hidden + j] * state[j] + gate[j] * gate[2 * hidden + j];
        reserve.cells[at + j] = state[j];
        write(t.y, gate[3 * hidden + j] * std::tanh(state[j]), w.step(s), w.row, w.direction * hidden + j);
      }
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      for (std::int64_t step = w.length; step < t.x.size(0); ++step) write(t.y, 0, step, w.row, w.direction * hidden + j);
      if (t.hn.given()) write(t.hn, previous(w, w.length, j), w.direction, w.row, j);
      if (t.cn.given()) write(t.cn, state[j], w.direction, w.row, j);
    }
  }
};

void forward(const RecurrentQuery& q, const RecurrentForward& t, void* workspace, const Stream&) {
  const RecurrentDescription& d = q.description;
  Arena scratch(workspace), kept(d.training ? t.reserve.data : nullptr);
  double* state = scratch.take<double>(d.hidden);
  const Reserve reserve = d.training ? take_reserve(kept, d, t.x.size(0), t.x.size(1))
                                     : Reserve{scratch.take<double>(4 * d.hidden), scratch.take<double>(d.hidden)};
  const Forward pass{d, t, reserve, d.training, state};
  for (std::int64_t direction = 0; direction < d.directions(); ++direction)
    for (std::int64_t b = 0; b < t.x.size(1); ++b) pass.run({direction, b, recurrent::length_of(t.lengths, b, t.x.size(0))});
}

struct BackwardScratch {
  double* dz = nullptr;  // [directions, T, B, 4H], gradients before the activations; 0 past a length
  double* dh = nullptr;  // [H]
  double* dc = nullptr;  // [H]
};

BackwardScratch take_backward(Arena& arena, const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  return {arena.take<double>(4 * d.directions() * steps * batch * d.hidden), arena.take<double>(d.hidden),
          arena.take<double>(d.hidden)};
}

struct Backward {
  const RecurrentDescription& d;
  const RecurrentBackward& t;
  Reserve reserve;
  BackwardScratch scratch;

  std::int64_t unit(std::int64_t direction, std::int64_t step, std::int64_t row) const {
    return ((direction * t.x.size(0) + step) * t.x.size(1) + row) * d.hidden;
  }
  Walk walk(std::int64_t direction, std::int64_t row) const {
    return {direction, row, recurrent::length_of(t.lengths, row, t.x.size(0))};
  }
  double previous(const Walk& w, std::int64_t s, std::int64_t j) const {
    return s > 0 ? read(t.y, w.step(s - 1), w.row, w.direction * d.hidden + j) : read_or_zero(t.h0, w.direction, w.row, j);
  }

  /// The cell of one step: dz from dh and dc, which becomes the gradient of the cell state before the step.
  void cell(const Walk& w, std::int64_t s) const {
    const std::int64_t hidden = d.hidden, step = w.step(s), at = unit(w.direction, step, w.row);
    const double* gate = reserve.gates + 4 * at;
    double* dz = scratch.dz + 4 * at;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double i = gate[j], f = gate[hidden + j], g = gate[2 * hidden + j], o = gate[3 * hidden + j];
      const double before =
          s > 0 ? reserve.cells[unit(w.direction, w.step(s - 1), w.row) + j] : read_or_zero(t.c0, w.direction, w.row, j);
      const double squashed = std::tanh(reserve.cells[at + j]);
      const double dh = scratch.dh[j] + read_or_zero(t.dy, step, w.row, w.direction * hidden + j);
      const double dc = scratch.dc[j] + dh * o * (1 - squashed * squashed);
      dz[j] = dc * g * i * (1 - i);
      dz[hidden + j] = dc * before * f * (1 - f);
      dz[2 * hidden + j] = dc * i * (1 - g * g);
      dz[3 * hidden + j] = dh * squashed * o * (1 - o);
      scratch.dc[j] = dc * f;
    }
  }

  void run(const Walk& w) const {
    const std::int64_t hidden = d.hidden;
    const ConstTensorView r = matrices(d, t.packed, t.weights[static_cast<std::size_t>(w.direction)], w.direction).w_hh;
    for (std::int64_t j = 0; j < hidden; ++j) {
      scratch.dh[j] = read_or_zero(t.dhn, w.direction, w.row, j);
      scratch.dc[j] = read_or_zero(t.dcn, w.direction, w.row, j);
    }
    for (std::int64_t s = w.length - 1; s >= 0; --s) {
      cell(w, s);
      const double* dz = scratch.dz + 4 * unit(w.direction, w.step(s), w.row);
      for (std::int64_t j = 0; j < hidden; ++j) {
        scratch.dh[j] = 0;
        for (std::int64_t row = 0; row < 4 * hidden; ++row) scratch.dh[j] += dz[row] * read(r, row, j);
      }
    }
    for (std::int64_t step = w.length; step < t.x.size(0); ++step)
      for (std::int64_t row = 0; row < 4 * hidden; ++row) scratch.dz[4 * unit(w.direction, step, w.row) + row] = 0;
    for (std::int64_t j = 0; j < hidden; ++j) {
      if (t.dh0.given()) write(t.dh0, scratch.dh[j], w.direction, w.row, j);
      if (t.dc0.given()) write(t.dc0, scratch.dc[j], w.direction, w.row, j);
    }
  }

  /// Sum over all valid steps of all rows of dz[gate row] times `factor(walk, s)`.
  template <class Factor>
  double over_steps(std::int64_t direction, std::int64_t row, const Factor& factor) const {
    double sum = 0;
    for (std::int64_t b = 0; b < t.x.size(1); ++b) {
      const Walk w = walk(direction, b);
      for (std::int64_t s = 0; s < w.length; ++s) sum += scratch.dz[4 * unit(direction, w.step(s), b) + row] * factor(w, s);
    }
    return sum;
  }

  void weights(std::int64_t direction, const RecurrentWeightGradients& out) const {
    const auto add = [&](const TensorView& to, double value, auto... at) {
      write(to, value + (t.accumulate ? read(to, at...) : 0), at...);
    };
    for (std::int64_t row = 0; row < 4 * d.hidden; ++row) {
      if (out.w_ih.given())
        for (std::int64_t i = 0; i < d.inputs; ++i)
          add(out.w_ih, over_steps(direction, row, [&](const Walk& w, std::int64_t s) { return read(t.x, w.step(s), w.row, i); }),
              row, i);
      if (out.w_hh.given())
        for (std::int64_t j = 0; j < d.hidden; ++j)
          add(out.w_hh, over_steps(direction, row, [&](const Walk& w, std::int64_t s) { return previous(w, s, j); }), row, j);
      if (!out.b_ih.given() && !out.b_hh.given()) continue;
      const double bias = over_steps(direction, row, [](const Walk&, std::int64_t) { return 1.0; });
      if (out.b_ih.given()) add(out.b_ih, bias, row);
      if (out.b_hh.given()) add(out.b_hh, bias, row);
    }
  }

  void inputs() const {
    for (std::int64_t step = 0; step < t.x.size(0); ++step)
      for (std::int64_t b = 0; b < t.x.size(1); ++b)
        for (std::int64_t i = 0; i < d.inputs; ++i) {
          const bool valid = step < recurrent::length_of(t.lengths, b, t.x.size(0));
          double sum = 0;
          for (std::int64_t direction = 0; valid && direction < d.directions(); ++direction) {
            const ConstTensorView w = matrices(d, t.packed, t.weights[static_cast<std::size_t>(direction)], direction).w_ih;
            const double* dz = scratch.dz + 4 * unit(direction, step, b);
            for (std::int64_t row = 0; row < 4 * d.hidden; ++row) sum += dz[row] * read(w, row, i);
          }
          write(t.dx, sum, step, b, i);
        }
  }
};

void backward(const RecurrentQuery& q, const RecurrentBackward& t, void* workspace, const Stream&) {
  const RecurrentDescription& d = q.description;
  // The reserve is only read; the arena that finds its parts hands out mutable pointers.
  Arena arena(workspace), kept(const_cast<void*>(t.reserve.data));
  const Backward pass{d, t, take_reserve(kept, d, t.x.size(0), t.x.size(1)), take_backward(arena, d, t.x.size(0), t.x.size(1))};
  for (std::int64_t direction = 0; direction < d.directions(); ++direction)
    for (std::int64_t b = 0; b < t.x.size(1); ++b) pass.run(pass.walk(direction, b));
  for (std::size_t direction = 0; direction < t.dweights.size(); ++direction)
    pass.weights(static_cast<std::int64_t>(direction), t.dweights[direction]);
  if (t.dx.given()) pass.inputs();
}

Footprint footprint(const RecurrentQuery& q) {
  const RecurrentDescription& d = q.description;
  Arena forward_part, backward_part, kept;
  forward_part.take<double>(d.hidden);
  if (d.training) {
    take_reserve(kept, d, q.sizes.steps, q.sizes.batch);
    take_backward(backward_part, d, q.sizes.steps, q.sizes.batch);
  } else {
    forward_part.take<double>(4 * d.hidden), forward_part.take<double>(d.hidden);
  }
  const auto packed = static_cast<std::size_t>(d.directions() * 4 * d.hidden * (d.inputs + d.hidden)) * size_of(d.dtype);
  return {std::max(forward_part.bytes(), backward_part.bytes()), kept.bytes(), packed};
}

void pack(const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed, const Stream&) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Matrices m = packed_matrices(q.description, packed, static_cast<std::int64_t>(i));
    for (const auto& [to, from] : {std::pair(m.w_ih, weights[i].w_ih), std::pair(m.w_hh, weights[i].w_hh)}) {
      TensorView target(const_cast<void*>(to.data), to.dtype, {to.size(0), to.size(1)});
      for (std::int64_t row = 0; row < to.size(0); ++row)
        for (std::int64_t column = 0; column < to.size(1); ++column) write(target, read(from, row, column), row, column);
    }
  }
}

}  // namespace

const RecurrentRow recurrent{.name = "reference.recurrent",
                             .accepts = recurrent::served,
                             .footprint = footprint,
                             .forward = forward,
                             .backward = backward,
                             .pack = pack};

}  // namespace everglow::reference
