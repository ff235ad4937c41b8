// How the stepwise row of a card lays out weights, gates and states of one layer: gates in torch's order, both directions of a step
// side by side, every row of a matrix that a product reads or writes on a multiple of 256 bytes. Gates, states of the cells and all
// gradients are f32, h has the storage type.
#pragma once

#include "core/arena.hpp"
#include "core/recurrent.hpp"
#include "core/rows.hpp"
#include "cuda/common/product.hpp"

#include <cstdint>
#include <span>

namespace everglow::cuda {

/// Elements of a row of n that ends on a multiple of 256 bytes.
constexpr std::int64_t line(std::int64_t n, DType dtype = DType::f32) {
  const std::int64_t unit = dtype == DType::f32 ? 64 : 128;
  return (n + unit - 1) / unit * unit;
}

struct LayerShape : recurrent::LayerSizes {
  bool narrow() const { return dtype != DType::f32; }
  std::int64_t gates() const { return slots * hidden; }
  std::int64_t gate_row() const { return line(gates()); }          // floats from one direction to the other
  std::int64_t row() const { return directions * gate_row(); }     // floats from one row of gates to the next
  std::int64_t state_row() const { return line(outputs, dtype); }  // elements of a row of h
  /// Gates whose product is of h itself: all, but for the n of a GRU that resets before the product.
  std::int64_t direct() const { return cell == Cell::gru_reset_before ? 2 * hidden : gates(); }
};
inline LayerShape layer_shape(const RecurrentDescription& description, std::int64_t steps, std::int64_t batch) {
  return {recurrent::layer_sizes(description, steps, batch)};
}

/// One direction's matrices in the storage type, and in f32, as products read them that are of f32 values. In f32 both are one.
struct LayerMatrices {
  void* w_ih = nullptr;      // [G·H, line(I)]
  void* w_hh = nullptr;      // [G·H, line(O)]
  float* wide_ih = nullptr;  // the same
  float* wide_hh = nullptr;
  float* wide_hr = nullptr;  // [P, line(H)]
};
struct LayerWeights {
  LayerMatrices of[2];
};
/// In the caller's packed bytes or in the workspace.
LayerWeights take_weights(Arena& arena, const LayerShape& shape);

/// Which parts a run reads.
struct WeightNeeds {
  bool w_ih = false, w_hh = false, wide_ih = false, wide_hh = false, wide_hr = false;
};
void fill_weights(const LayerWeights& to, const LayerShape& shape, std::span<const RecurrentWeights> from, const WeightNeeds& needs,
                  cudaStream_t stream);
/// The weights of a run: the caller's packed ones, else laid out now in `room`.
template <class Tensors>
LayerWeights weights_of_run(const LayerWeights& room, const LayerShape& shape, const Tensors& t, const WeightNeeds& needs,
                            cudaStream_t stream) {
  if (t.packed == nullptr) {
    fill_weights(room, shape, t.weights, needs, stream);
    return room;
  }
  Arena arena(t.packed->bytes.data);
  return take_weights(arena, shape);
}

/// What forward keeps for backward.
struct LayerReserve {
  float* gates = nullptr;  // [T, B, row], activated
  float* cells = nullptr;  // [T, B, directions, H]: LSTM the cell state, GRU what r multiplies, else empty
};
LayerReserve take_reserve(Arena& arena, const LayerShape& shape);

/// What the products of a layer share, by the sizes of the plan; null where none of them asks cuBLASLt, which a deterministic plan
/// never does: it may add in another order for another batch.
void* take_library(Arena& arena, const RecurrentQuery& query);

/// Products of f32 values in a layer of 16 bits multiply 11 bits of each: no fewer than its storage type has.
inline Math wide_math(const RecurrentQuery& q) { return q.description.dtype == DType::f32 ? q.options.math : Math::tf32; }

void recurrent_forward(const RecurrentQuery& query, const RecurrentForward& tensors, void* workspace, const Stream& stream);
void recurrent_backward(const RecurrentQuery& query, const RecurrentBackward& tensors, void* workspace, const Stream& stream);
std::size_t recurrent_forward_bytes(const RecurrentQuery& query);
std::size_t recurrent_backward_bytes(const RecurrentQuery& query);

}  // namespace everglow::cuda
