// How the stepwise row lays out weights, gates and states of one layer: hidden units are padded to blocks of 16
// (isa/recurrent_cells.hpp), the rows of the weights are reordered to blocks of all gates, and both directions of a step stand side
// by side. Gates and states are f32; weights keep their storage type until a product reads them, and x, y and dy are converted
// where a row of them is read or written.
#pragma once

#include "core/arena.hpp"
#include "core/recurrent.hpp"
#include "core/rows.hpp"
#include "core/storage.hpp"
#include "cpu/isa/recurrent_cells.hpp"

#include <cstdint>
#include <span>

namespace everglow::cpu {

using recurrent::step_rows;
using recurrent::StepRows;

struct RecurrentShape : recurrent::LayerSizes {
  std::int64_t blocks() const { return (hidden + cell_block - 1) / cell_block; }
  std::int64_t units() const { return blocks() * cell_block; }
  std::int64_t state() const { return (outputs + cell_block - 1) / cell_block * cell_block; }
  std::int64_t gates() const { return slots * units(); }
  std::int64_t row() const { return directions * gates(); }  // gates of both directions
  std::int64_t bytes(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
  /// Gates whose product is of h itself: all, but for the n of a GRU that resets before the product, which stands behind them.
  std::int64_t direct_slots() const { return cell == Cell::gru_reset_before ? 2 : slots; }
  std::int64_t direct() const { return direct_slots() * units(); }
  std::int64_t candidate() const { return gates() - direct(); }
  /// Row of gate q of a unit in the block order.
  std::int64_t place(std::int64_t q, std::int64_t unit) const {
    if (q >= direct_slots()) return direct() + unit;
    return (unit / cell_block * direct_slots() + q) * cell_block + unit % cell_block;
  }
  /// The same for a row of the caller's matrices.
  std::int64_t place(std::int64_t row) const { return place(row / hidden, row % hidden); }
};

inline RecurrentShape shape_of(const RecurrentDescription& description, std::int64_t steps, std::int64_t batch) {
  return {recurrent::layer_sizes(description, steps, batch)};
}

/// Weights in block order and their storage type, as forward and backward read them; padding is zero. In the caller's packed bytes
/// or in the workspace.
struct LoopWeights {
  std::byte* w_ih = nullptr;                        // [row, I]
  void* w_ih_packed = nullptr;                      // w_ihᵀ for gemm_packed
  std::byte* w_hh = nullptr;                        // [row, O]
  void* forward[2] = {nullptr, nullptr};            // w_hhᵀ of each direction for gemm_packed, of the direct gates
  void* backward[2] = {nullptr, nullptr};           // w_hh
  void* candidate_forward[2] = {nullptr, nullptr};  // the same of the others
  void* candidate_backward[2] = {nullptr, nullptr};
  void* project_forward[2] = {nullptr, nullptr};   // w_hrᵀ
  void* project_backward[2] = {nullptr, nullptr};  // w_hr
};
LoopWeights take_weights(Arena& arena, const RecurrentShape& shape, Isa isa);

/// Which parts a run reads.
struct LoopNeeds {
  bool w_ih = false, w_ih_packed = false, forward = false, backward = false;
};
void fill_weights(const LoopWeights& to, const RecurrentShape& shape, std::span<const RecurrentWeights> from,
                  const LoopNeeds& needs, const RecurrentQuery& query);
/// The weights of a run: the caller's packed ones, else packed now into `room`.
LoopWeights weights_of_run(const LoopWeights& room, const RecurrentShape& shape, std::span<const RecurrentWeights> from,
                           const PackedWeights* packed, const LoopNeeds& needs, const RecurrentQuery& query);

/// What forward keeps for backward.
struct LoopReserve {
  float* gates = nullptr;  // [T, B, row], activated
  float* cells = nullptr;  // [T, B, directions, units]: LSTM the cell state, GRU what r multiplies, else empty
};
LoopReserve take_reserve(Arena& arena, const RecurrentShape& shape);

/// Blocks that slices of units are multiples of in the forward loop, so that slices of every product are whole panels.
std::int64_t forward_grain(const RecurrentShape& shape, Isa isa);

inline const CellKernels& cell_kernels(Isa isa) {
  return select(isa, portable::cell_kernels, avx2::cell_kernels, avx512::cell_kernels);
}
/// Row (i, j) of a rank-3 view; null where it is not given.
inline const std::byte* row_of(const ConstTensorView& view, std::int64_t i, std::int64_t j) {
  if (!view.given()) return nullptr;
  return static_cast<const std::byte*>(view.data) +
         (i * view.strides[0] + j * view.strides[1]) * static_cast<std::int64_t>(size_of(view.dtype));
}
inline std::byte* row_of(const TensorView& view, std::int64_t i, std::int64_t j) {
  return const_cast<std::byte*>(row_of(ConstTensorView(view), i, j));
}

void recurrent_forward(const RecurrentQuery& query, const RecurrentForward& tensors, void* workspace, const Stream&);
void recurrent_backward(const RecurrentQuery& query, const RecurrentBackward& tensors, void* workspace, const Stream&);
std::size_t recurrent_forward_bytes(const RecurrentQuery& query);
std::size_t recurrent_backward_bytes(const RecurrentQuery& query);

}  // namespace everglow::cpu
