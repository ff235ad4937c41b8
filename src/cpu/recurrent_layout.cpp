// The layout of recurrent_layout.hpp: packing and strides.
#include "cpu/recurrent_layout.hpp"

#include "core/parallel.hpp"
#include "core/recurrent.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace everglow::cpu {
namespace {

void* take_packed(Arena& arena, Isa isa, const RecurrentShape& s, std::int64_t k, std::int64_t n) {
  return arena.take<std::byte>(static_cast<std::int64_t>(packed_matrix_bytes(isa, k, n, s.dtype)));
}

/// The rows of one direction in block order.
void reorder(std::byte* to, const ConstTensorView& from, const RecurrentShape& s, std::int64_t columns, int threads) {
  if (columns == 0) return;
  const std::int64_t bytes = s.bytes(columns);
  parallel_ranges(threads, s.units(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit)
      for (std::int64_t q = 0; q < s.slots; ++q) {
        std::byte* row = to + s.place(q, unit) * bytes;
        if (unit < s.hidden)
          std::memcpy(row, static_cast<const std::byte*>(from.data) + s.bytes((q * s.hidden + unit) * from.strides[0]),
                      static_cast<std::size_t>(bytes));
        else
          std::memset(row, 0, static_cast<std::size_t>(bytes));
      }
  });
}

}  // namespace

LoopWeights take_weights(Arena& arena, const RecurrentShape& s, Isa isa) {
  LoopWeights w;
  w.w_ih = arena.take<std::byte>(s.bytes(s.row() * s.inputs));
  w.w_ih_packed = take_packed(arena, isa, s, s.inputs, s.row());
  w.w_hh = arena.take<std::byte>(s.bytes(s.row() * s.outputs));
  for (std::int64_t d = 0; d < s.directions; ++d) {
    w.forward[d] = take_packed(arena, isa, s, s.outputs, s.direct());
    w.backward[d] = take_packed(arena, isa, s, s.direct(), s.outputs);
    if (s.projects) {
      w.project_forward[d] = take_packed(arena, isa, s, s.hidden, s.outputs);
      w.project_backward[d] = take_packed(arena, isa, s, s.outputs, s.hidden);
    }
    if (s.candidate() == 0) continue;
    w.candidate_forward[d] = take_packed(arena, isa, s, s.hidden, s.candidate());
    w.candidate_backward[d] = take_packed(arena, isa, s, s.candidate(), s.hidden);
  }
  return w;
}

void fill_weights(const LoopWeights& to, const RecurrentShape& s, std::span<const RecurrentWeights> from, const LoopNeeds& needs,
                  const RecurrentQuery& q) {
  for (std::size_t d = 0; d < from.size(); ++d) {
    const std::int64_t first = static_cast<std::int64_t>(d) * s.gates();
    if (needs.w_ih || needs.w_ih_packed) reorder(to.w_ih + s.bytes(first * s.inputs), from[d].w_ih, s, s.inputs, q.threads);
    if (needs.forward || needs.backward) reorder(to.w_hh + s.bytes(first * s.outputs), from[d].w_hh, s, s.outputs, q.threads);
  }
  const auto pack = [&](bool transpose, const void* data, std::int64_t stride, std::int64_t k, std::int64_t n, void* packed) {
    pack_matrix(q.isa, {.transpose = transpose, .data = data, .dtype = s.dtype, .stride = stride, .k = k, .n = n}, packed);
  };
  // each task packs one matrix, so that threads need no agreement
  parallel_tasks(q.threads, 1 + 2 * s.directions, [&](std::int64_t task) {
    if (task == 0) {
      if (needs.w_ih_packed) pack(true, to.w_ih, s.inputs, s.inputs, s.row(), to.w_ih_packed);
      return;
    }
    const std::int64_t d = (task - 1) / 2;
    const std::byte* w_hh = to.w_hh + s.bytes(d * s.gates() * s.outputs);
    const std::byte* rest = w_hh + s.bytes(s.direct() * s.outputs);
    const ConstTensorView& w_hr = from[static_cast<std::size_t>(d)].w_hr;
    if (task % 2 == 1 && needs.forward) {
      pack(true, w_hh, s.outputs, s.outputs, s.direct(), to.forward[d]);
      if (s.projects) pack(true, w_hr.data, w_hr.strides[0], s.hidden, s.outputs, to.project_forward[d]);
      if (s.candidate() > 0) pack(true, rest, s.hidden, s.hidden, s.candidate(), to.candidate_forward[d]);
    }
    if (task % 2 == 0 && needs.backward) {
      pack(false, w_hh, s.outputs, s.direct(), s.outputs, to.backward[d]);
      if (s.projects) pack(false, w_hr.data, w_hr.strides[0], s.outputs, s.hidden, to.project_backward[d]);
      if (s.candidate() > 0) pack(false, rest, s.hidden, s.candidate(), s.hidden, to.candidate_backward[d]);
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

}  // namespace everglow::cpu
