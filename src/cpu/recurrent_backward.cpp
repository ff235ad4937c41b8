// A stepwise layer, backward: a fused cell and a product with the packed recurrent matrix a step, then one product each for the
// gradients of the input, of w_ih and of w_hh over all steps.
#include "core/mutant.hpp"
#include "core/recurrent.hpp"
#include "cpu/recurrent_layout.hpp"
#include "cpu/recurrent_loop.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <numeric>

namespace everglow::cpu {
namespace {

struct BackwardScratch {
  float* dz = nullptr;      // [T, B, row], gradients of W x + b; 0 past a length
  float* du = nullptr;      // [T, B, row], of R h + b'; for all cells but a GRU the same memory
  float* mixed = nullptr;   // [directions, B, units], the gradient of r h where the reset comes before the product
  float* total = nullptr;   // [T, B, directions, state], of h, and
  float* out = nullptr;     // [directions, B, units], of what was projected, where there is a projection
  float* dh = nullptr;      // [directions, B, state], from the step after
  float* dc = nullptr;      // [directions, B, units]
  float* rows = nullptr;    // [3, directions, B, units or state], a row of dy, of dhn and of a state, where they are not f32
  std::byte* x = nullptr;   // [T, B, I], a copy in the storage type whose padding is zero, where lengths are given
  float* before = nullptr;  // [T, B, O or H], h before each step or what was projected, of one direction
  float* dw = nullptr;      // [row, I] or [gates, O] or [P, H], a weight gradient in block order
  float* sums = nullptr;    // [row]
  LoopWeights room;
};

BackwardScratch take_backward(Arena& arena, const RecurrentShape& s, bool lengths, Isa isa) {
  BackwardScratch out;
  out.dz = arena.take<float>(s.rows() * s.row());
  out.du = s.cell == Cell::gru ? arena.take<float>(s.rows() * s.row()) : out.dz;
  if (s.candidate() > 0) out.mixed = arena.take<float>(s.directions * s.batch * s.units());
  if (s.projects) {
    out.total = arena.take<float>(s.rows() * s.directions * s.state());
    out.out = arena.take<float>(s.directions * s.batch * s.units());
  }
  out.dh = arena.take<float>(s.directions * s.batch * s.state());
  out.dc = arena.take<float>(s.directions * s.batch * s.units());
  if (s.dtype != DType::f32) out.rows = arena.take<float>(3 * s.directions * s.batch * std::max(s.units(), s.state()));
  if (lengths) out.x = arena.take<std::byte>(s.bytes(s.rows() * s.inputs));
  out.before = arena.take<float>(s.rows() * (s.projects ? std::max(s.hidden, s.outputs) : s.outputs));
  out.dw = arena.take<float>(std::max({s.row() * s.inputs, s.gates() * s.outputs, s.projects ? s.outputs * s.hidden : 0}));
  out.sums = arena.take<float>(s.row());
  out.room = take_weights(arena, s, isa);
  return out;
}

struct Backward {
  const RecurrentQuery& q;
  const RecurrentBackward& t;
  RecurrentShape s;
  LoopReserve kept;
  BackwardScratch scratch;
  LoopWeights weights;
  const CellKernels& kernels;
  Storage storage{s.dtype, q.isa};
  Storage c0{t.c0.dtype, q.isa}, dcn{t.dcn.dtype, q.isa}, dc0{t.dc0.dtype, q.isa};

  std::int64_t length(std::int64_t b) const { return recurrent::length_of(t.lengths, b, s.steps); }
  GemmContext context() const { return {.threads = q.threads, .isa = q.isa, .library = !q.options.deterministic}; }

  // ---- the time loop ----

  float* dh(const LoopPart& p, std::int64_t b) const { return scratch.dh + (p.direction * s.batch + b) * s.state(); }
  float* dc(const LoopPart& p, std::int64_t b) const { return scratch.dc + (p.direction * s.batch + b) * s.units(); }
  /// The first and the last valid step of a row in the order of the forward pass; -1 where it has none.
  std::int64_t first_step(std::int64_t direction, std::int64_t b) const {
    return direction == 0 ? std::min<std::int64_t>(length(b), 1) - 1 : length(b) - 1;
  }
  std::int64_t last_step(std::int64_t direction, std::int64_t b) const { return first_step(1 - direction, b); }

  void begin(const LoopPart& p) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      p.state.clear(dh(p, b)), p.units.clear(dc(p, b));
      if (t.dcn.given() && !mutant("recurrent.dcn")) p.units.read(dcn, dc(p, b), row_of(t.dcn, p.direction, b));
      if (t.dhn.given() && length(b) == 0) p.state.read(storage, dh(p, b), row_of(t.dhn, p.direction, b));
      if (t.dh0.given() && length(b) == 0) p.state.write(storage, row_of(t.dh0, p.direction, b), dh(p, b));
    }
  }

  /// Whether the state before a step is the caller's, where no reset cut it off.
  bool first(const LoopPart& p, std::int64_t step, std::int64_t b) const { return step == first_step(p.direction, b); }
  bool reset_before(std::int64_t direction, std::int64_t step, std::int64_t b) const {
    return recurrent::reset_before(t.resets, direction, step, b, length(b));
  }
  std::int64_t gates_at(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return (step * s.batch + b) * s.row() + p.direction * s.gates();
  }
  float* cell_at(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return kept.cells + ((step * s.batch + b) * s.directions + p.direction) * s.units();
  }
  /// A part of a caller's row as f32: the row itself, or a copy in the which-th of the part's rows.
  const float* part_of(const Storage& from, const std::byte* row, const LoopRange& range, const LoopPart& p, std::int64_t b,
                       std::int64_t which) const {
    if (row == nullptr || from.is_f32()) return reinterpret_cast<const float*>(row);
    float* room = scratch.rows + ((which * s.directions + p.direction) * s.batch + b) * std::max(s.units(), s.state());
    range.read(from, room, row);
    return room;
  }
  const float* dy_at(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    const std::byte* dy = row_of(t.dy, step, b);
    return dy ? part_of(storage, storage.at(dy, p.direction * s.outputs), p.state, p, b, 0) : nullptr;
  }
  const float* dh_at(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    if (step != last_step(p.direction, b)) return dh(p, b);
    return dropped("recurrent.dhn", part_of(storage, row_of(t.dhn, p.direction, b), p.state, p, b, 1));
  }
  /// h before a valid step as the caller has it; null where it is zero.
  const std::byte* state_before(std::int64_t direction, std::int64_t step, std::int64_t b) const {
    if (reset_before(direction, step, b) && !mutant("recurrent.state_before_reset")) return nullptr;
    if (step == first_step(direction, b)) return row_of(t.h0, direction, b);
    return storage.at(row_of(t.y, direction == 0 ? step - 1 : step + 1, b), direction * s.outputs);
  }
  const float* before(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return part_of(storage, state_before(p.direction, step, b), p.state, p, b, 2);
  }
  const float* cell_before(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    if (reset_before(p.direction, step, b)) return nullptr;
    if (!first(p, step, b)) return cell_at(p, p.direction == 0 ? step - 1 : step + 1, b);
    return part_of(c0, row_of(t.c0, p.direction, b), p.units, p, b, 2);
  }

  void lstm(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    kernels.lstm_backward({.gates = kept.gates + gates_at(p, step, b),
                           .cell = cell_at(p, step, b),
                           .before = cell_before(p, step, b),
                           .dy = s.projects ? nullptr : dy_at(p, step, b),
                           .dh = s.projects ? out(p, b) : dh_at(p, step, b),
                           .dc = dc(p, b),
                           .dz = scratch.dz + gates_at(p, step, b),
                           .begin = p.first_block,
                           .end = p.last_block,
                           .hidden = s.hidden});
    if (reset_before(p.direction, step, b) && !mutant("recurrent.reset_cuts_dc")) p.units.clear(dc(p, b));
  }

  void gru(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    kernels.gru_backward({.gates = kept.gates + gates_at(p, step, b),
                          .inner = cell_at(p, step, b),
                          .before = before(p, step, b),
                          .dy = dy_at(p, step, b),
                          .dh = dh_at(p, step, b),
                          .carried = dh(p, b),
                          .dz = scratch.dz + gates_at(p, step, b),
                          .du = scratch.du + gates_at(p, step, b),
                          .begin = p.first_block,
                          .end = p.last_block,
                          .hidden = s.hidden});
  }

  float* mixed(const LoopPart& p, std::int64_t b) const { return scratch.mixed + (p.direction * s.batch + b) * s.units(); }
  ResetBackwardRow reset_row(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    const std::int64_t at = gates_at(p, step, b);
    return {.gates = kept.gates + at,
            .candidate = kept.gates + at + s.direct(),
            .before = before(p, step, b),
            .dy = dy_at(p, step, b),
            .dh = dh_at(p, step, b),
            .mixed = mixed(p, b),
            .carried = dh(p, b),
            .dz = scratch.dz + at,
            .dcandidate = scratch.dz + at + s.direct(),
            .begin = p.first_block,
            .end = p.last_block,
            .hidden = s.hidden};
  }
  /// The product of the candidate's gradients, and those of the gates from it.
  void reset(const LoopPart& p, std::int64_t step, bool valid, SpinBarrier& barrier) const {
    barrier.wait();  // the product reads the candidate's gradients of all units
    if (!valid) return;
    gemm_packed(q.isa, {.m = p.rows(),
                        .k = s.candidate(),
                        .n = s.hidden,
                        .a = scratch.dz + gates_at(p, step, p.first_row) + s.direct(),
                        .lda = s.row(),
                        .packed = weights.candidate_backward[p.direction],
                        .packed_type = s.dtype,
                        .column_begin = p.units.first,
                        .column_end = p.units.end,
                        .c = mixed(p, p.first_row),
                        .ldc = s.units()});
    for (std::int64_t b = p.first_row; b < p.last_row; ++b)
      if (step < length(b)) kernels.reset_gates_backward(reset_row(p, step, b));
  }

  void plain(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    (s.cell == Cell::tanh ? kernels.tanh_backward : kernels.relu_backward)({.gates = kept.gates + gates_at(p, step, b),
                                                                            .dy = dy_at(p, step, b),
                                                                            .dh = dh_at(p, step, b),
                                                                            .dz = scratch.dz + gates_at(p, step, b),
                                                                            .begin = p.first_block,
                                                                            .end = p.last_block,
                                                                            .hidden = s.hidden});
  }

  float* out(const LoopPart& p, std::int64_t b) const { return scratch.out + (p.direction * s.batch + b) * s.units(); }
  float* total(std::int64_t direction, std::int64_t step, std::int64_t b) const {
    return scratch.total + ((step * s.batch + b) * s.directions + direction) * s.state();
  }
  /// The gradients of what the cells put out from those of h, which the weights' gradient needs too; 0 past a length.
  void unproject(const LoopPart& p, std::int64_t step, bool valid, SpinBarrier& barrier) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      float* to = total(p.direction, step, b);
      p.state.clear(to);
      if (step >= length(b)) continue;
      for (const float* from : {dh_at(p, step, b), dropped("recurrent.projection_dy", dy_at(p, step, b))})
        for (std::int64_t j = p.state.first; from != nullptr && j < p.state.end; ++j) to[j] += from[j];
    }
    barrier.wait();  // the product reads all of h
    if (!valid) return;
    gemm_packed(q.isa, {.m = p.rows(),
                        .k = s.outputs,
                        .n = s.hidden,
                        .a = total(p.direction, step, p.first_row),
                        .lda = s.directions * s.state(),
                        .packed = weights.project_backward[p.direction],
                        .packed_type = s.dtype,
                        .column_begin = p.units.first,
                        .column_end = p.units.end,
                        .c = out(p, p.first_row),
                        .ldc = s.units()});
  }

  void cell(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    if (step >= length(b)) {
      for (float* gradients : {scratch.dz, scratch.du}) {
        float* at = gradients + gates_at(p, step, b);
        std::fill(at + s.direct_slots() * p.units.first, at + s.direct_slots() * p.units.padded, 0.0F);
        if (s.candidate() > 0) p.units.clear(at + s.direct());
      }
      return;
    }
    if (s.cell == Cell::lstm)
      lstm(p, step, b);
    else if (s.cell == Cell::gru)
      gru(p, step, b);
    else if (s.cell == Cell::gru_reset_before)
      kernels.reset_candidate_backward(reset_row(p, step, b));
    else
      plain(p, step, b);
  }

  bool carries() const { return s.cell == Cell::gru || s.cell == Cell::gru_reset_before; }
  /// dh of the step before: through R, beside what a GRU carries past its gates. It ends at a reset and in dh0.
  void multiply(const LoopPart& p, std::int64_t step) const {
    gemm_packed(q.isa, {.m = p.rows(),
                        .k = s.direct(),
                        .n = s.outputs,
                        .a = scratch.du + gates_at(p, step, p.first_row),
                        .lda = s.row(),
                        .packed = weights.backward[p.direction],
                        .packed_type = s.dtype,
                        .column_begin = p.state.first,
                        .column_end = p.state.end,
                        .c = dh(p, p.first_row),
                        .ldc = s.state(),
                        .accumulate = carries()});
    if (!t.resets.given() && !t.dh0.given()) return;
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      if (step >= length(b)) continue;
      if (reset_before(p.direction, step, b) && !mutant("recurrent.reset_cuts_dh")) p.state.clear(dh(p, b));
      if (t.dh0.given() && first(p, step, b)) p.state.write(storage, row_of(t.dh0, p.direction, b), dh(p, b));
    }
  }

  void operator()(const LoopPart& p, SpinBarrier& barrier) const {
    begin(p);
    std::int64_t longest = 0;
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) longest = std::max(longest, length(b));
    for (std::int64_t i = s.steps - 1; i >= 0; --i) {
      const std::int64_t step = p.direction == 0 ? i : s.steps - 1 - i;
      const bool valid = step < longest;
      if (s.projects) unproject(p, step, valid, barrier);
      for (std::int64_t b = p.first_row; b < p.last_row; ++b) cell(p, step, b);
      if (s.cell == Cell::gru_reset_before) reset(p, step, valid, barrier);
      barrier.wait();  // the product reads the gradients of all units
      if (valid && (i > 0 || t.dh0.given())) multiply(p, step);
    }
    for (std::int64_t b = p.first_row; t.dc0.given() && b < p.last_row; ++b)
      p.units.write(dc0, row_of(t.dc0, p.direction, b), dc(p, b));
  }

  // ---- the products over all steps ----

  void clean_inputs() const {
    const std::int64_t bytes = s.bytes(s.inputs);
    parallel_ranges(q.threads, s.rows(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        if (row / s.batch < length(row % s.batch))
          std::copy_n(row_of(t.x, row / s.batch, row % s.batch), bytes, scratch.x + row * bytes);
        else
          std::fill_n(scratch.x + row * bytes, bytes, std::byte{0});
      }
    });
  }

  /// What R multiplied: h before each step, or with `reset` r h.
  void states_before(std::int64_t direction, bool reset) const {
    parallel_ranges(q.threads, s.rows(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t step = row / s.batch, b = row % s.batch;
        const std::byte* from = step < length(b) ? state_before(direction, step, b) : nullptr;
        float* to = scratch.before + row * s.outputs;
        if (from != nullptr)
          storage.widen(from, to, s.outputs);
        else
          std::fill(to, to + s.outputs, 0.0F);
        const float* gates = kept.gates + row * s.row() + direction * s.gates();
        for (std::int64_t unit = 0; reset && from != nullptr && unit < s.hidden; ++unit) to[unit] *= gates[s.place(0, unit)];
      }
    });
  }

  /// What a projection multiplied, made again.
  void outputs_of_cells(std::int64_t direction) const {
    parallel_ranges(q.threads, s.rows(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* to = scratch.before + row * s.hidden;
        if (row / s.batch < length(row % s.batch))
          kernels.lstm_output(kept.gates + row * s.row() + direction * s.gates(),
                              kept.cells + (row * s.directions + direction) * s.units(), to, s.hidden);
        else
          std::fill(to, to + s.hidden, 0.0F);
      }
    });
  }

  /// A gradient of rows as `place` orders them in the caller's order.
  template <class Place>
  void deliver(const TensorView& to, const float* from, const Place& place) const {
    if (!to.given()) return;
    const std::int64_t columns = to.size(1);
    const Storage target(to.dtype, q.isa);
    parallel_ranges(q.threads, to.size(0), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        target.put(from + place(row) * columns, target.at(to.data, row * to.strides[0]), columns,
                   t.accumulate && !mutant("recurrent.accumulate"));
      }
    });
  }
  /// Rows of a gradient in block order to the caller's order.
  void deliver(const TensorView& to, const float* from) const {
    deliver(to, from, [&](std::int64_t row) { return s.place(row); });
  }

  bool wanted(TensorView RecurrentWeightGradients::*gradient) const {
    return std::any_of(t.dweights.begin(), t.dweights.end(), [&](const auto& g) { return (g.*gradient).given(); });
  }

  void input_weights() const {
    if (!wanted(&RecurrentWeightGradients::w_ih)) return;
    if (scratch.x != nullptr) clean_inputs();
    const StepRows rows = scratch.x != nullptr ? StepRows{s.inputs, true} : step_rows(t.x);
    const std::int64_t parts = rows.folds ? 1 : s.steps, k = s.rows() / parts;
    for (std::int64_t part = 0; part < parts; ++part)
      gemm({.transpose_a = true,
            .m = s.row(),
            .n = s.inputs,
            .k = k,
            .a = scratch.dz + part * k * s.row(),
            .lda = s.row(),
            .b = scratch.x != nullptr ? scratch.x : row_of(t.x, part, 0),
            .ldb = rows.stride,
            .c = scratch.dw,
            .ldc = s.inputs,
            .accumulate = part > 0,
            .b_type = s.dtype},
           context());
    for (std::size_t d = 0; d < t.dweights.size(); ++d)
      deliver(t.dweights[d].w_ih, scratch.dw + static_cast<std::int64_t>(d) * s.gates() * s.inputs);
  }

  /// The gradient of R's rows [begin, end) in block order.
  void recurrent_product(std::int64_t direction, std::int64_t begin, std::int64_t end) const {
    gemm({.transpose_a = true,
          .m = end - begin,
          .n = s.outputs,
          .k = s.rows(),
          .a = scratch.du + direction * s.gates() + begin,
          .lda = s.row(),
          .b = scratch.before,
          .ldb = s.outputs,
          .c = scratch.dw + begin * s.outputs,
          .ldc = s.outputs},
         context());
  }

  void recurrent_weights() const {
    for (std::size_t d = 0; d < t.dweights.size(); ++d) {
      if (!t.dweights[d].w_hh.given()) continue;
      const auto direction = static_cast<std::int64_t>(d);
      states_before(direction, false);
      recurrent_product(direction, 0, s.direct());
      if (s.candidate() > 0) {
        states_before(direction, !mutant("recurrent.candidate_states"));
        recurrent_product(direction, s.direct(), s.gates());
      }
      deliver(t.dweights[d].w_hh, scratch.dw);
    }
  }

  void projection_weights() const {
    for (std::size_t d = 0; d < t.dweights.size(); ++d) {
      if (!t.dweights[d].w_hr.given()) continue;
      outputs_of_cells(static_cast<std::int64_t>(d));
      gemm({.transpose_a = true,
            .m = s.outputs,
            .n = s.hidden,
            .k = s.rows(),
            .a = total(static_cast<std::int64_t>(d), 0, 0),
            .lda = s.directions * s.state(),
            .b = scratch.before,
            .ldb = s.hidden,
            .c = scratch.dw,
            .ldc = s.hidden},
           context());
      deliver(t.dweights[d].w_hr, scratch.dw, [](std::int64_t row) { return row; });
    }
  }

  void biases() const {
    const auto both = {&RecurrentWeightGradients::b_ih, &RecurrentWeightGradients::b_hh};
    const float* summed = nullptr;
    for (TensorView RecurrentWeightGradients::*bias : both) {
      if (!wanted(bias)) continue;
      const bool of_inputs = bias == &RecurrentWeightGradients::b_ih || mutant("recurrent.bias_of_state");
      const float* gradients = of_inputs ? scratch.dz : scratch.du;
      if (gradients != summed)
        parallel_ranges(q.threads, s.row() / cell_block, 4, [&](std::int64_t begin, std::int64_t end) {
          kernels.column_sums(gradients, s.rows(), s.row(), begin * cell_block, end * cell_block, scratch.sums);
        });
      summed = gradients;
      for (std::size_t d = 0; d < t.dweights.size(); ++d) {
        const TensorView& to = t.dweights[d].*bias;
        const Storage target(to.dtype, q.isa);
        const float* sums = scratch.sums + static_cast<std::int64_t>(d) * s.gates();
        for (std::int64_t q = 0; to.given() && q < s.slots; ++q)
          for (std::int64_t unit = 0; unit < s.hidden; unit += cell_block)  // units of a block stand together
            target.put(sums + s.place(q, unit), target.at(to.data, q * s.hidden + unit), std::min(cell_block, s.hidden - unit),
                       t.accumulate);
      }
    }
  }

  void inputs() const {
    if (!t.dx.given()) return;
    const StepRows rows = step_rows(t.dx);
    const std::int64_t parts = rows.folds ? 1 : s.steps, m = s.rows() / parts;
    for (std::int64_t part = 0; part < parts; ++part)
      gemm({.m = m,
            .n = s.inputs,
            .k = s.row(),
            .a = scratch.dz + part * m * s.row(),
            .lda = s.row(),
            .b = weights.w_ih,
            .ldb = s.inputs,
            .c = row_of(t.dx, part, 0),
            .ldc = rows.stride,
            .b_type = s.dtype,
            .c_type = s.dtype},
           context());
    for (std::int64_t b = 0; b < s.batch; ++b)  // zero even where a weight is not finite
      for (std::int64_t step = length(b); step < s.steps; ++step)
        std::fill_n(row_of(t.dx, step, b), s.bytes(s.inputs), std::byte{0});
  }
};

}  // namespace

std::size_t recurrent_backward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_backward(arena, shape_of(q.description, q.sizes.steps, q.sizes.batch), q.description.lengths, q.isa);
  return arena.bytes();
}

void recurrent_backward(const RecurrentQuery& q, const RecurrentBackward& t, void* workspace, const Stream&) {
  const RecurrentShape s = shape_of(q.description, t.x.size(0), t.x.size(1));
  // The reserve is only read; the arena that finds its parts hands out mutable pointers.
  Arena arena(workspace), reserve(const_cast<void*>(t.reserve.data));
  const BackwardScratch scratch = take_backward(arena, s, q.description.lengths, q.isa);
  const LoopNeeds needs{.w_ih = t.dx.given(), .w_ih_packed = false, .forward = false, .backward = true};
  const LoopWeights weights = weights_of_run(scratch.room, s, t.weights, t.packed, needs, q);
  const Backward pass{q, t, s, take_reserve(reserve, s), scratch, weights, cell_kernels(q.isa)};
  const std::int64_t grain = std::lcm(packed_panel_columns(q.isa), cell_block) / cell_block;
  run_loop(s, q.threads, grain, pass);
  pass.input_weights();
  pass.recurrent_weights();
  pass.projection_weights();
  pass.biases();
  pass.inputs();
}

}  // namespace everglow::cpu
