// The stepwise LSTM, forward: one product for the inputs of all steps and directions, then a product with the packed recurrent
// matrix and the fused cell a step.
#include "core/recurrent.hpp"
#include "cpu/recurrent_layout.hpp"
#include "cpu/recurrent_loop.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace everglow::cpu {
namespace {

struct ForwardScratch {
  LstmReserve kept;       // in the caller's reserve where the plan trains
  float* bias = nullptr;  // [row]
  float* h = nullptr;     // [2, directions, B, units], before and after a step in turn
  float* c = nullptr;     // [directions, B, units]
  LstmWeights room;
};

ForwardScratch take_forward(Arena& arena, const LstmShape& s, bool training, Isa isa) {
  ForwardScratch out;
  if (!training) out.kept.gates = arena.take<float>(s.rows() * s.row());
  out.bias = arena.take<float>(s.row());
  out.h = arena.take<float>(2 * s.directions * s.batch * s.units());
  out.c = arena.take<float>(s.directions * s.batch * s.units());
  out.room = take_weights(arena, s, isa);
  return out;
}

/// b_ih + b_hh in block order; zero in the padding.
void fill_bias(float* bias, const LstmShape& s, std::span<const RecurrentWeights> weights) {
  std::fill(bias, bias + s.row(), 0.0F);
  for (std::size_t d = 0; d < weights.size(); ++d) {
    float* to = bias + static_cast<std::int64_t>(d) * s.gates();
    for (const ConstTensorView& from : {weights[d].b_ih, weights[d].b_hh})
      for (std::int64_t row = 0; from.given() && row < 4 * s.hidden; ++row)
        to[LstmShape::place(row / s.hidden, row % s.hidden)] += floats(from)[row * from.strides[0]];
  }
}

/// Products below this many rows are served from the packed matrix: a library would lay it out anew each time.
constexpr std::int64_t packed_rows = 128;

bool library_serves_inputs(const RecurrentQuery& q, const LstmShape& s) {
  return !q.options.deterministic && has_onednn() && s.rows() >= packed_rows;
}

/// gates = x w_ihᵀ by our own micro-kernel: the same bits whatever the rows and threads.
void packed_inputs(const RecurrentQuery& q, const LstmShape& s, const ConstTensorView& x, const LstmWeights& w, float* gates) {
  constexpr std::int64_t tile = 64;  // rows of x that stay in the first cache while all columns pass
  const std::int64_t stride = step_rows("recurrent.forward", "x", x).stride;
  const std::int64_t panel = packed_panel_columns(q.isa);
  const std::int64_t row_tiles = (s.batch + tile - 1) / tile, tiles = s.steps * row_tiles;
  const bool small = s.rows() * s.row() * s.inputs < 1'000'000;
  const int threads = small ? 1 : q.threads;
  const std::int64_t columns = tiles >= threads ? 1 : threads;  // parts of the columns
  const std::int64_t panels = (s.row() + panel - 1) / panel;
  parallel_tasks(threads, tiles * columns, [&](std::int64_t task) {
    const std::int64_t step = task / columns / row_tiles, part = task % columns;
    const std::int64_t first = task / columns % row_tiles * tile, rows = std::min(tile, s.batch - first);
    const std::int64_t begin = std::min(panels * part / columns * panel, s.row());
    const std::int64_t end = std::min(panels * (part + 1) / columns * panel, s.row());
    gemm_packed(q.isa, rows, s.inputs, s.row(), row_of(x, step, first), stride, w.w_ih_packed, begin, end,
                gates + (step * s.batch + first) * s.row(), s.row(), false);
  });
}

void library_inputs(const RecurrentQuery& q, const LstmShape& s, const ConstTensorView& x, const LstmWeights& w, float* gates) {
  const StepRows rows = step_rows("recurrent.forward", "x", x);
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
          .ldc = s.row()},
         {.threads = q.threads, .isa = q.isa, .library = true});
}

struct ForwardLoop {
  const RecurrentQuery& q;
  const RecurrentForward& t;
  LstmShape s;
  ForwardScratch scratch;
  LstmWeights weights;
  const LstmKernels& kernels;

  float* h(std::int64_t parity, const LstmPart& p, std::int64_t row) const {
    return scratch.h + ((parity * s.directions + p.direction) * s.batch + row) * s.units();
  }
  float* c(const LstmPart& p, std::int64_t row) const { return scratch.c + (p.direction * s.batch + row) * s.units(); }
  std::int64_t units(const LstmPart& p) const { return (p.last_block - p.first_block) * lstm_block; }
  /// Units of a part that exist; the rest of the last block is padding.
  std::int64_t real_units(const LstmPart& p) const { return std::min(units(p), s.hidden - p.first_unit()); }
  void copy_real(float* to, const float* from, const LstmPart& p) const {
    if (real_units(p) > 0) std::memcpy(to, from, static_cast<std::size_t>(real_units(p)) * sizeof(float));
  }

  void begin(const LstmPart& p) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b)
      for (const auto& [to, from] :
           {std::pair(h(0, p, b), row_of(t.h0, p.direction, b)), std::pair(c(p, b), row_of(t.c0, p.direction, b))}) {
        std::fill(to + p.first_unit(), to + p.first_unit() + units(p), 0.0F);
        if (from != nullptr) copy_real(to + p.first_unit(), from + p.first_unit(), p);
      }
  }

  void finish(const LstmPart& p) const {
    for (std::int64_t b = p.first_row; b < p.last_row; ++b) {
      if (t.hn.given()) copy_real(row_of(t.hn, p.direction, b) + p.first_unit(), h(s.steps % 2, p, b) + p.first_unit(), p);
      if (t.cn.given()) copy_real(row_of(t.cn, p.direction, b) + p.first_unit(), c(p, b) + p.first_unit(), p);
    }
  }

  void cell(const LstmPart& p, std::int64_t step, std::int64_t b, std::int64_t parity) const {
    float* y = row_of(t.y, step, b) + p.direction * s.hidden;
    if (step >= recurrent::length_of(t.lengths, b, s.steps)) {  // the state waits, y is zero
      std::memcpy(h(1 - parity, p, b) + p.first_unit(), h(parity, p, b) + p.first_unit(),
                  static_cast<std::size_t>(units(p)) * sizeof(float));
      std::fill(y + p.first_unit(), y + p.first_unit() + std::max<std::int64_t>(real_units(p), 0), 0.0F);
      return;
    }
    const std::int64_t row = step * s.batch + b;
    kernels.forward({.gates = scratch.kept.gates + row * s.row() + p.direction * s.gates(),
                     .bias = scratch.bias + p.direction * s.gates(),
                     .c = c(p, b),
                     .h = h(1 - parity, p, b),
                     .y = y,
                     .cell = scratch.kept.cells ? scratch.kept.cells + (row * s.directions + p.direction) * s.units() : nullptr,
                     .begin = p.first_block,
                     .end = p.last_block,
                     .hidden = s.hidden});
  }

  void operator()(const LstmPart& p, SpinBarrier& barrier) const {
    begin(p);
    barrier.wait();
    std::int64_t longest = 0;
    for (std::int64_t b = p.first_row; b < p.last_row; ++b)
      longest = std::max(longest, recurrent::length_of(t.lengths, b, s.steps));
    for (std::int64_t i = 0; i < s.steps; ++i) {
      const std::int64_t step = p.direction == 0 ? i : s.steps - 1 - i, parity = i % 2;
      float* gates = scratch.kept.gates + (step * s.batch + p.first_row) * s.row() + p.direction * s.gates();
      if (step < longest && (i > 0 || t.h0.given()))
        gemm_packed(q.isa, p.rows(), s.hidden, s.gates(), h(parity, p, p.first_row), s.units(), weights.forward[p.direction],
                    4 * p.first_unit(), 4 * p.last_block * lstm_block, gates, s.row(), true);
      for (std::int64_t b = p.first_row; b < p.last_row; ++b) cell(p, step, b, parity);
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

void recurrent_forward(const RecurrentQuery& q, const RecurrentForward& t, void* workspace) {
  const LstmShape s = shape_of(q.description, t.x.size(0), t.x.size(1));
  Arena arena(workspace), reserve(t.reserve.data);
  ForwardScratch scratch = take_forward(arena, s, q.description.training, q.isa);
  if (q.description.training) scratch.kept = take_reserve(reserve, s);
  const bool library = library_serves_inputs(q, s);
  const LstmWeights weights = weights_of_run(scratch.room, s, t.weights, t.packed,
                                             {.w_ih = library, .w_ih_packed = !library, .forward = true, .backward = false}, q);
  fill_bias(scratch.bias, s, t.weights);
  if (library)
    library_inputs(q, s, t.x, weights, scratch.kept.gates);
  else
    packed_inputs(q, s, t.x, weights, scratch.kept.gates);
  const std::int64_t grain = std::lcm(packed_panel_columns(q.isa), 4 * lstm_block) / (4 * lstm_block);
  run_loop(s, q.threads, grain, ForwardLoop{q, t, s, scratch, weights, lstm_kernels(q.isa)});
}

}  // namespace everglow::cpu
