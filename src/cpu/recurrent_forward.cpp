// A stepwise layer, forward: one product for the inputs of all steps and directions, then a product with the packed recurrent
// matrix and the fused cell a step. A storage type of 16 bits rounds h once a step: what y holds is what the next step reads.
#include "core/mutant.hpp"
#include "core/recurrent.hpp"
#include "cpu/recurrent_layout.hpp"
#include "cpu/recurrent_loop.hpp"
#include "gemm/gemm.hpp"
#include "plan/cpu.hpp"

#include <algorithm>

namespace everglow::cpu {
namespace {

struct ForwardScratch {
  LoopReserve kept;             // in the caller's reserve where the plan trains
  float* bias = nullptr;        // [row]
  float* inner_bias = nullptr;  // [directions, units], of R h in the n of a GRU
  float* products = nullptr;    // [directions, B, gates], R h of a GRU
  float* mixed = nullptr;       // [directions, B, units], r h where the reset comes before the product
  float* out = nullptr;         // [directions, B, units], what goes into a projection
  float* h = nullptr;           // [2, directions, B, state], before and after a step in turn
  float* c = nullptr;           // [directions, B, units]
  LoopWeights room;
};

ForwardScratch take_forward(Arena& arena, const RecurrentShape& s, bool training, Isa isa) {
  ForwardScratch out;
  if (!training) out.kept.gates = arena.take<float>(s.rows() * s.row());
  out.bias = arena.take<float>(s.row());
  if (s.cell == Cell::gru) {
    out.inner_bias = arena.take<float>(s.directions * s.units());
    out.products = arena.take<float>(s.batch * s.row());
  }
  if (s.candidate() > 0) out.mixed = arena.take<float>(s.directions * s.batch * s.units());
  if (s.projects) out.out = arena.take<float>(s.directions * s.batch * s.units());
  out.h = arena.take<float>(2 * s.directions * s.batch * s.state());
  out.c = arena.take<float>(s.directions * s.batch * s.units());
  out.room = take_weights(arena, s, isa);
  return out;
}

/// Calls f(row, value) for the rows [begin, end) of a bias.
template <class F>
void for_bias(const Storage& storage, const ConstTensorView& from, std::int64_t begin, std::int64_t end, const F& f) {
  constexpr std::int64_t part = 256;
  float values[part];
  for (std::int64_t first = begin; from.given() && first < end; first += part) {
    const std::int64_t count = std::min(part, end - first);
    storage.widen(storage.at(from.data, first), values, count);
    for (std::int64_t i = 0; i < count; ++i) f(first + i, values[i]);
  }
}

/// b_ih + b_hh in block order, but for the part of a GRU's b_hh that r multiplies; zero in the padding.
void fill_bias(const ForwardScratch& to, const RecurrentShape& s, std::span<const RecurrentWeights> weights, Isa isa) {
  const Storage storage(s.dtype, isa);
  const std::int64_t rows = s.slots * s.hidden, shared = to.inner_bias != nullptr ? 2 * s.hidden : rows;
  std::fill(to.bias, to.bias + s.row(), 0.0F);
  if (to.inner_bias != nullptr) std::fill(to.inner_bias, to.inner_bias + s.directions * s.units(), 0.0F);
  for (std::size_t d = 0; d < weights.size(); ++d) {
    const auto direction = static_cast<std::int64_t>(d);
    const auto add = [&](std::int64_t row, float value) { to.bias[direction * s.gates() + s.place(row)] += value; };
    for_bias(storage, weights[d].b_ih, 0, rows, add);
    for_bias(storage, weights[d].b_hh, 0, shared, add);
    for_bias(storage, weights[d].b_hh, shared, rows,
             [&](std::int64_t row, float value) { to.inner_bias[direction * s.units() + row - shared] = value; });
  }
}

bool library_serves_inputs(const RecurrentQuery& q, const RecurrentShape& s) {
  return !q.options.deterministic && has_onednn() && onednn_multiplies(s.dtype) && s.rows() >= plan::library_rows;
}

/// gates = x w_ihᵀ by our own micro-kernel: the same bits whatever the rows and threads.
void packed_inputs(const RecurrentQuery& q, const RecurrentShape& s, const ConstTensorView& x, const LoopWeights& w, float* gates) {
  constexpr std::int64_t tile = 64;  // rows of x that stay in the first cache while all columns pass
  const std::int64_t stride = step_rows(x).stride, panel = packed_panel_columns(q.isa);
  const std::int64_t row_tiles = (s.batch + tile - 1) / tile, tiles = s.steps * row_tiles;
  const bool small = s.rows() * s.row() * s.inputs < 1'000'000;
  const int threads = small ? 1 : q.threads;
  const std::int64_t columns = tiles >= threads ? 1 : threads;  // parts of the columns
  const std::int64_t panels = (s.row() + panel - 1) / panel;
  parallel_tasks(threads, tiles * columns, [&](std::int64_t task) {
    const std::int64_t step = task / columns / row_tiles, part = task % columns;
    const std::int64_t first = task / columns % row_tiles * tile;
    gemm_packed(q.isa, {.m = std::min(tile, s.batch - first),
                        .k = s.inputs,
                        .n = s.row(),
                        .a = row_of(x, step, first),
                        .a_type = s.dtype,
                        .lda = stride,
                        .packed = w.w_ih_packed,
                        .packed_type = s.dtype,
                        .column_begin = std::min(panels * part / columns * panel, s.row()),
                        .column_end = std::min(panels * (part + 1) / columns * panel, s.row()),
                        .c = gates + (step * s.batch + first) * s.row(),
                        .ldc = s.row()});
  });
}

void library_inputs(const RecurrentQuery& q, const RecurrentShape& s, const ConstTensorView& x, const LoopWeights& w,
                    float* gates) {
  const StepRows rows = step_rows(x);
  const std::int64_t parts = rows.folds ? 1 : s.steps, m = s.rows() / parts;
  for (std::int64_t part = 0; part < parts; ++part)
    gemm({.transpose_b = true,
          .m = m,
          .n = s.row(),
          .k = s.inputs,
          .a = row_of(x, part, 0),
          .lda = rows.stride,
          .b = w.w_ih,
          .ldb = s.inputs,
          .c = gates + part * m * s.row(),
          .ldc = s.row(),
          .a_type = s.dtype,
          .b_type = s.dtype},
         {.threads = q.threads, .isa = q.isa, .library = true});
}

struct ForwardLoop {
  const RecurrentQuery& q;
  const RecurrentForward& t;
  RecurrentShape s;
  ForwardScratch scratch;
  LoopWeights weights;
  const CellKernels& kernels;
  Storage storage{s.dtype, q.isa};
  Storage c0{t.c0.dtype, q.isa}, cn{t.cn.dtype, q.isa};

  float* h(std::int64_t parity, const LoopPart& p, std::int64_t row) const {
    return scratch.h + ((parity * s.directions + p.direction) * s.batch + row) * s.state();
  }
  float* c(const LoopPart& p, std::int64_t row) const { return scratch.c + (p.direction * s.batch + row) * s.units(); }
  std::int64_t length(std::int64_t b) const { return recurrent::length_of(t.lengths, b, s.steps); }
  bool reset_before(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return recurrent::reset_before(t.resets, p.direction, step, b, length(b));
  }

  void begin(const LoopPart& p) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      const bool fresh = length(b) > 0 && p.direction == 0 && reset_before(p, 0, b);
      p.state.clear(h(0, p, b)), p.units.clear(c(p, b));
      if (t.h0.given() && !fresh) p.state.read(storage, h(0, p, b), row_of(t.h0, p.direction, b));
      if (t.c0.given() && !fresh) p.units.read(c0, c(p, b), row_of(t.c0, p.direction, b));
    }
  }

  void finish(const LoopPart& p) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      if (t.hn.given()) p.state.write(storage, row_of(t.hn, p.direction, b), h(s.steps % 2, p, b));
      if (t.cn.given()) p.units.write(cn, row_of(t.cn, p.direction, b), c(p, b));
    }
  }

  float* out(const LoopPart& p, std::int64_t b) const { return scratch.out + (p.direction * s.batch + b) * s.units(); }
  std::byte* y(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return storage.at(row_of(t.y, step, b), p.direction * s.outputs);
  }
  /// Where a cell puts its copy of h: y itself, or h again, which `emit` rounds.
  float* copy_of_h(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    return storage.is_f32() ? reinterpret_cast<float*>(y(p, step, b)) : h(1 - parity, p, b);
  }
  /// h as y holds it, for y and for the next step.
  void emit(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    p.state.write(storage, y(p, step, b), h(1 - parity, p, b));
    if (!storage.is_f32() && !mutant("recurrent.rounded_h")) p.state.read(storage, h(1 - parity, p, b), y(p, step, b));
  }
  void lstm(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    const std::int64_t row = step * s.batch + b;
    kernels.lstm_forward(
        {.gates = gates_of(p, step, b),
         .bias = scratch.bias + p.direction * s.gates(),
         .c = c(p, b),
         .h = s.projects ? out(p, b) : h(1 - parity, p, b),
         .y = s.projects ? out(p, b) : copy_of_h(p, step, b, parity),
         .cell = scratch.kept.cells ? scratch.kept.cells + (row * s.directions + p.direction) * s.units() : nullptr,
         .begin = p.first_block,
         .end = p.last_block,
         .hidden = s.hidden});
  }

  void gru(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    const std::int64_t row = step * s.batch + b;
    kernels.gru_forward(
        {.gates = gates_of(p, step, b),
         .products = has_products(p, step) ? products(p, b) : nullptr,
         .bias = scratch.bias + p.direction * s.gates(),
         .inner_bias = scratch.inner_bias + p.direction * s.units(),
         .before = h(parity, p, b),
         .h = h(1 - parity, p, b),
         .y = copy_of_h(p, step, b, parity),
         .inner = scratch.kept.cells ? scratch.kept.cells + (row * s.directions + p.direction) * s.units() : nullptr,
         .begin = p.first_block,
         .end = p.last_block,
         .hidden = s.hidden});
  }

  float* mixed(const LoopPart& p, std::int64_t b) const { return scratch.mixed + (p.direction * s.batch + b) * s.units(); }
  ResetForwardRow reset_row(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    return {.gates = gates_of(p, step, b),
            .candidate = gates_of(p, step, b) + s.direct(),
            .bias = scratch.bias + p.direction * s.gates(),
            .before = h(parity, p, b),
            .mixed = mixed(p, b),
            .h = h(1 - parity, p, b),
            .y = copy_of_h(p, step, b, parity),
            .begin = p.first_block,
            .end = p.last_block,
            .hidden = s.hidden};
  }
  /// The gates of a GRU that resets before the product, and that product.
  void reset(const LoopPart& p, std::int64_t step, std::int64_t parity, bool valid, SpinBarrier& barrier) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b)
      if (step < length(b)) kernels.reset_gates(reset_row(p, step, b, parity));
    barrier.wait();  // the product reads r h of all units
    if (valid && has_products(p, step))
      gemm_packed(q.isa, {.m = p.rows(),
                          .k = s.hidden,
                          .n = s.candidate(),
                          .a = mixed(p, p.first_row),
                          .lda = s.units(),
                          .packed = weights.candidate_forward[p.direction],
                          .packed_type = s.dtype,
                          .column_begin = p.first_unit(),
                          .column_end = p.last_block * cell_block,
                          .c = gates_of(p, step, p.first_row) + s.direct(),
                          .ldc = s.row(),
                          .accumulate = true});
  }

  void plain(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    (s.cell == Cell::tanh ? kernels.tanh_forward : kernels.relu_forward)({.gates = gates_of(p, step, b),
                                                                          .bias = scratch.bias + p.direction * s.gates(),
                                                                          .h = h(1 - parity, p, b),
                                                                          .y = copy_of_h(p, step, b, parity),
                                                                          .begin = p.first_block,
                                                                          .end = p.last_block,
                                                                          .hidden = s.hidden});
  }

  void cell(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    if (s.cell == Cell::lstm)
      lstm(p, step, b, parity);
    else if (s.cell == Cell::gru)
      gru(p, step, b, parity);
    else if (s.cell == Cell::gru_reset_before)
      kernels.reset_candidate(reset_row(p, step, b, parity));
    else
      plain(p, step, b, parity);
    if (!storage.is_f32() && !s.projects) emit(p, step, b, parity);
  }

  /// The state past a length waits, and y is zero. A reset clears what the next step would see, before the threads meet: its
  /// product reads all units.
  void settle(const LoopPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    if (step >= length(b)) {
      if (!mutant("recurrent.state_waits"))
        std::copy(h(parity, p, b) + p.state.first, h(parity, p, b) + p.state.padded, h(1 - parity, p, b) + p.state.first);
      std::fill(storage.at(y(p, step, b), p.state.first), storage.at(y(p, step, b), p.state.first + p.state.count()), std::byte{0});
      return;
    }
    const std::int64_t next = p.direction == 0 ? step + 1 : step - 1;
    if (!t.resets.given() || next < 0 || next >= length(b) || !reset_before(p, next, b)) return;
    p.state.clear(h(1 - parity, p, b));
    if (!mutant("recurrent.reset_clears_cell")) p.units.clear(c(p, b));
  }

  /// h of all rows of a part from what the cells put out.
  void project(const LoopPart& p, std::int64_t step, std::int64_t parity, bool valid, SpinBarrier& barrier) const {
    barrier.wait();  // the product reads all units
    if (!valid) return;
    gemm_packed(q.isa, {.m = p.rows(),
                        .k = s.hidden,
                        .n = s.outputs,
                        .a = out(p, p.first_row),
                        .lda = s.units(),
                        .packed = weights.project_forward[p.direction],
                        .packed_type = s.dtype,
                        .column_begin = p.state.first,
                        .column_end = p.state.end,
                        .c = h(1 - parity, p, p.first_row),
                        .ldc = s.state()});
    for (std::int64_t b = p.first_row; b < p.last_row; ++b)
      if (step < length(b)) emit(p, step, b, parity);
  }

  float* gates_of(const LoopPart& p, std::int64_t step, std::int64_t b) const {
    return scratch.kept.gates + (step * s.batch + b) * s.row() + p.direction * s.gates();
  }
  float* products(const LoopPart& p, std::int64_t b) const { return scratch.products + (p.direction * s.batch + b) * s.gates(); }
  /// The first step of a walk without h0 has nothing to multiply.
  bool has_products(const LoopPart& p, std::int64_t step) const {
    return t.h0.given() || step != (p.direction == 0 ? 0 : s.steps - 1);
  }

  /// R h of all rows of a part: a GRU's stands alone, the others' is added to W x.
  void multiply(const LoopPart& p, std::int64_t step, std::int64_t parity) const {
    const bool apart = s.cell == Cell::gru;
    gemm_packed(q.isa, {.m = p.rows(),
                        .k = s.outputs,
                        .n = s.direct(),
                        .a = h(parity, p, p.first_row),
                        .a_is_bf16 = s.dtype == DType::bf16,  // h, for the next step as y has it
                        .lda = s.state(),
                        .packed = weights.forward[p.direction],
                        .packed_type = s.dtype,
                        .column_begin = s.direct_slots() * p.first_unit(),
                        .column_end = s.direct_slots() * p.last_block * cell_block,
                        .c = apart ? products(p, p.first_row) : gates_of(p, step, p.first_row),
                        .ldc = apart ? s.gates() : s.row(),
                        .accumulate = !apart});
  }

  void operator()(const LoopPart& p, SpinBarrier& barrier) const {
    begin(p);
    barrier.wait();
    std::int64_t longest = 0;
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) longest = std::max(longest, length(b));
    for (std::int64_t i = 0; i < s.steps; ++i) {
      const std::int64_t step = p.direction == 0 ? i : s.steps - 1 - i, parity = i % 2;
      if (step < longest && has_products(p, step)) multiply(p, step, parity);
      if (s.cell == Cell::gru_reset_before) reset(p, step, parity, step < longest, barrier);
      for (std::int64_t b = p.first_row; b < p.last_row; ++b)
        if (step < length(b)) cell(p, step, b, parity);
      if (s.projects) project(p, step, parity, step < longest, barrier);
      for (std::int64_t b = p.first_row; b < p.last_row; ++b) settle(p, step, b, parity);
      barrier.wait();
    }
    finish(p);
  }
};

}  // namespace

std::size_t recurrent_forward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_forward(arena, shape_of(q.description, q.sizes.steps, q.sizes.batch), q.description.training, q.isa);
  return arena.bytes();
}

void recurrent_forward(const RecurrentQuery& q, const RecurrentForward& t, void* workspace, const Stream&) {
  const RecurrentShape s = shape_of(q.description, t.x.size(0), t.x.size(1));
  Arena arena(workspace), reserve(t.reserve.data);
  ForwardScratch scratch = take_forward(arena, s, q.description.training, q.isa);
  if (q.description.training) scratch.kept = take_reserve(reserve, s);
  const bool library = library_serves_inputs(q, s);
  const LoopWeights weights = weights_of_run(scratch.room, s, t.weights, t.packed,
                                             {.w_ih = library, .w_ih_packed = !library, .forward = true, .backward = false}, q);
  fill_bias(scratch, s, t.weights, q.isa);
  if (library)
    library_inputs(q, s, t.x, weights, scratch.kept.gates);
  else
    packed_inputs(q, s, t.x, weights, scratch.kept.gates);
  run_loop(s, q.threads, forward_grain(s, q.isa), ForwardLoop{q, t, s, scratch, weights, cell_kernels(q.isa)});
}

}  // namespace everglow::cpu
