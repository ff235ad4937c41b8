// The layout of recurrent_layout.hpp: packing and strides.
#include "cpu/recurrent_layout.hpp"

#include "core/check.hpp"
#include "core/parallel.hpp"
#include "core/recurrent.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <numeric>

namespace everglow::cpu {
namespace {

void* take_packed(Arena& arena, Isa isa, std::int64_t k, std::int64_t n) {
  return arena.take<std::byte>(static_cast<std::int64_t>(packed_matrix_bytes(isa, k, n)));
}

/// The rows of one direction in block order.
void reorder(float* to, const ConstTensorView& from, const RecurrentShape& s, std::int64_t columns, const RecurrentQuery& q) {
  if (columns == 0) return;
  const Storage storage(s.dtype, q.isa);
  parallel_ranges(q.threads, s.units(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit)
      for (std::int64_t slot = 0; slot < s.slots; ++slot) {
        float* row = to + s.place(slot, unit) * columns;
        if (unit < s.hidden)
          storage.widen(storage.at(from.data, (slot * s.hidden + unit) * from.strides[0]), row, columns);
        else
          std::fill_n(row, columns, 0.0F);
      }
  });
}

/// The projections as f32 matrices: the caller's, or copies.
class Projections {
 public:
  Projections(const LoopWeights& to, const RecurrentShape& s, std::span<const RecurrentWeights> from, const RecurrentQuery& q)
      : s_(s), copies_(to.w_hr), from_(from) {
    if (!s.projects || copies_ == nullptr) return;
    const Storage storage(s.dtype, q.isa);
    for (std::size_t d = 0; d < from.size(); ++d)
      for (std::int64_t row = 0; row < s.outputs; ++row)
        storage.widen(storage.at(from[d].w_hr.data, row * from[d].w_hr.strides[0]),
                      copies_ + (static_cast<std::int64_t>(d) * s.outputs + row) * s.hidden, s.hidden);
  }
  const float* data(std::int64_t d) const {
    return copies_ != nullptr ? copies_ + d * s_.outputs * s_.hidden : static_cast<const float*>(given(d).data);
  }
  std::int64_t stride(std::int64_t d) const { return copies_ != nullptr ? s_.hidden : given(d).strides[0]; }

 private:
  const ConstTensorView& given(std::int64_t d) const { return from_[static_cast<std::size_t>(d)].w_hr; }

  const RecurrentShape& s_;
  float* copies_;
  std::span<const RecurrentWeights> from_;
};

}  // namespace

RecurrentShape shape_of(const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  return {.steps = steps,
          .batch = batch,
          .inputs = d.inputs,
          .hidden = d.hidden,
          .directions = d.directions(),
          .cell = d.cell,
          .slots = recurrent::gate_count(d.cell),
          .outputs = recurrent::outputs_of(d),
          .projects = d.projection > 0,
          .dtype = d.dtype};
}

LoopWeights take_weights(Arena& arena, const RecurrentShape& s, Isa isa) {
  LoopWeights w;
  w.w_ih = arena.take<float>(s.row() * s.inputs);
  w.w_ih_packed = take_packed(arena, isa, s.inputs, s.row());
  w.w_hh = arena.take<float>(s.row() * s.outputs);
  if (s.projects && s.dtype != DType::f32) w.w_hr = arena.take<float>(s.directions * s.outputs * s.hidden);
  for (std::int64_t d = 0; d < s.directions; ++d) {
    w.forward[d] = take_packed(arena, isa, s.outputs, s.direct());
    w.backward[d] = take_packed(arena, isa, s.direct(), s.outputs);
    if (s.projects) {
      w.project_forward[d] = take_packed(arena, isa, s.hidden, s.outputs);
      w.project_backward[d] = take_packed(arena, isa, s.outputs, s.hidden);
    }
    if (s.candidate() == 0) continue;
    w.candidate_forward[d] = take_packed(arena, isa, s.hidden, s.candidate());
    w.candidate_backward[d] = take_packed(arena, isa, s.candidate(), s.hidden);
  }
  return w;
}

void fill_weights(const LoopWeights& to, const RecurrentShape& s, std::span<const RecurrentWeights> from, const LoopNeeds& needs,
                  const RecurrentQuery& q) {
  for (std::size_t d = 0; d < from.size(); ++d) {
    const std::int64_t first = static_cast<std::int64_t>(d) * s.gates();
    if (needs.w_ih || needs.w_ih_packed) reorder(to.w_ih + first * s.inputs, from[d].w_ih, s, s.inputs, q);
    if (needs.forward || needs.backward) reorder(to.w_hh + first * s.outputs, from[d].w_hh, s, s.outputs, q);
  }
  const Projections w_hr(to, s, from, q);
  // each task packs one matrix, so that threads need no agreement
  parallel_tasks(q.threads, 1 + 2 * s.directions, [&](std::int64_t task) {
    if (task == 0) {
      if (needs.w_ih_packed) pack_matrix(q.isa, true, to.w_ih, s.inputs, s.inputs, s.row(), to.w_ih_packed);
      return;
    }
    const std::int64_t d = (task - 1) / 2;
    const float* w_hh = to.w_hh + d * s.gates() * s.outputs;
    const float* rest = w_hh + s.direct() * s.outputs;
    const std::int64_t stride = w_hr.stride(d);
    if (task % 2 == 1 && needs.forward) {
      pack_matrix(q.isa, true, w_hh, s.outputs, s.outputs, s.direct(), to.forward[d]);
      if (s.projects) pack_matrix(q.isa, true, w_hr.data(d), stride, s.hidden, s.outputs, to.project_forward[d]);
      if (s.candidate() > 0) pack_matrix(q.isa, true, rest, s.hidden, s.hidden, s.candidate(), to.candidate_forward[d]);
    }
    if (task % 2 == 0 && needs.backward) {
      pack_matrix(q.isa, false, w_hh, s.outputs, s.direct(), s.outputs, to.backward[d]);
      if (s.projects) pack_matrix(q.isa, false, w_hr.data(d), stride, s.outputs, s.hidden, to.project_backward[d]);
      if (s.candidate() > 0) pack_matrix(q.isa, false, rest, s.hidden, s.candidate(), s.hidden, to.candidate_backward[d]);
    }
  });
}

LoopWeights weights_of_run(const LoopWeights& room, const RecurrentShape& s, std::span<const RecurrentWeights> from,
                           const PackedWeights* packed, const LoopNeeds& needs, const RecurrentQuery& q) {
  if (packed == nullptr) {
    fill_weights(room, s, from, needs, q);
    return room;
  }
  Arena arena(packed->bytes.data);
  return take_weights(arena, s, q.isa);
}

LoopReserve take_reserve(Arena& arena, const RecurrentShape& s) {
  const bool cells = s.cell == Cell::lstm || s.cell == Cell::gru;
  return {arena.take<float>(s.rows() * s.row()), arena.take<float>(cells ? s.rows() * s.directions * s.units() : 0)};
}

std::int64_t forward_grain(const RecurrentShape& s, Isa isa) {
  const auto blocks = [&](std::int64_t columns_of_a_block) {
    return std::lcm(packed_panel_columns(isa), columns_of_a_block) / columns_of_a_block;
  };
  const std::int64_t direct = blocks(s.direct_slots() * cell_block);
  return s.candidate() > 0 || s.projects ? std::lcm(direct, blocks(cell_block)) : direct;
}

StepRows step_rows(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  const std::int64_t steps = view.size(0), batch = view.size(1), columns = view.size(2);
  if (view.elements() == 0 || (steps == 1 && batch == 1)) return {columns, true};
  const std::int64_t stride = batch > 1 ? view.stride(1) : view.stride(0);
  require(stride >= columns, ErrorCode::invalid_argument, where, argument, ": cpu.recurrent_stepwise expected rows at least ",
          columns, " elements apart, got stride ", stride);
  return {stride, batch == 1 || steps == 1 || view.stride(0) == batch * stride};
}

}  // namespace everglow::cpu
