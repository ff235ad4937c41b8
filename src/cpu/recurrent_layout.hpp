// How the stepwise LSTM lays out weights, gates and states: hidden units are padded to blocks of 16 (isa/lstm_cell.hpp), the rows
// of the weights are reordered to blocks of i, f, g, o, and both directions of a step stand side by side.
#pragma once

#include "core/arena.hpp"
#include "core/rows.hpp"
#include "cpu/isa/lstm_cell.hpp"

#include <cstdint>
#include <span>

namespace everglow::cpu {

struct LstmShape {
  std::int64_t steps = 0, batch = 0, inputs = 0, hidden = 0, directions = 1;
  std::int64_t blocks() const { return (hidden + lstm_block - 1) / lstm_block; }
  std::int64_t units() const { return blocks() * lstm_block; }
  std::int64_t gates() const { return 4 * units(); }
  std::int64_t row() const { return directions * gates(); }  // gates of both directions
  std::int64_t rows() const { return steps * batch; }
  /// Row of gate q of a unit in the block order.
  static std::int64_t place(std::int64_t q, std::int64_t unit) {
    return (unit / lstm_block * 4 + q) * lstm_block + unit % lstm_block;
  }
};

LstmShape shape_of(const RecurrentDescription& description, std::int64_t steps, std::int64_t batch);

/// Weights in block order, as forward and backward read them; padding is zero. In the caller's packed bytes or in the workspace.
struct LstmWeights {
  float* w_ih = nullptr;                   // [row, I]
  void* w_ih_packed = nullptr;             // w_ihᵀ for gemm_packed
  float* w_hh = nullptr;                   // [row, H]
  void* forward[2] = {nullptr, nullptr};   // w_hhᵀ of each direction for gemm_packed
  void* backward[2] = {nullptr, nullptr};  // w_hh
};
LstmWeights take_weights(Arena& arena, const LstmShape& shape, Isa isa);

/// Which parts a run reads.
struct LstmNeeds {
  bool w_ih = false, w_ih_packed = false, forward = false, backward = false;
};
void fill_weights(const LstmWeights& to, const LstmShape& shape, std::span<const RecurrentWeights> from, const LstmNeeds& needs,
                  const RecurrentQuery& query);
/// The weights of a run: the caller's packed ones, else packed now into `room`.
LstmWeights weights_of_run(const LstmWeights& room, const LstmShape& shape, std::span<const RecurrentWeights> from,
                           const PackedWeights* packed, const LstmNeeds& needs, const RecurrentQuery& query);

/// What forward keeps for backward.
struct LstmReserve {
  float* gates = nullptr;  // [T, B, row], activated
  float* cells = nullptr;  // [T, B, directions, units]
};
LstmReserve take_reserve(Arena& arena, const LstmShape& shape);

/// Rows of x or dx as one matrix where the strides allow, else as one matrix a step. Throws where rows overlap.
struct StepRows {
  std::int64_t stride = 0;
  bool folds = false;
};
StepRows step_rows(std::string_view where, std::string_view argument, const ConstTensorView& view);  // [T, B, n]

inline const LstmKernels& lstm_kernels(Isa isa) {
  return select(isa, portable::lstm_kernels, avx2::lstm_kernels, avx512::lstm_kernels);
}
inline const float* floats(const ConstTensorView& view) { return static_cast<const float*>(view.data); }
inline float* floats(const TensorView& view) { return static_cast<float*>(view.data); }
/// Row (i, j) of a rank-3 view; null where it is not given.
inline const float* row_of(const ConstTensorView& view, std::int64_t i, std::int64_t j) {
  return view.given() ? floats(view) + i * view.strides[0] + j * view.strides[1] : nullptr;
}
inline float* row_of(const TensorView& view, std::int64_t i, std::int64_t j) {
  return view.given() ? floats(view) + i * view.strides[0] + j * view.strides[1] : nullptr;
}

void recurrent_forward(const RecurrentQuery& query, const RecurrentForward& tensors, void* workspace);
void recurrent_backward(const RecurrentQuery& query, const RecurrentBackward& tensors, void* workspace);
std::size_t recurrent_forward_bytes(const RecurrentQuery& query);
std::size_t recurrent_backward_bytes(const RecurrentQuery& query);

}  // namespace everglow::cpu
