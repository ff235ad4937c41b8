// The backward pass of a stepwise layer on a card: the memory that its loop over the steps (recurrent_backward.cu) hands to the
// sums over all steps (recurrent_gradients.cu).
#pragma once

#include "cuda/common/recurrent_layout.hpp"

namespace everglow::cuda {

struct BackwardScratch {
  float* dz = nullptr;      // [T, B, row], gradients of W x + b; 0 past a length
  float* du = nullptr;      // [T, B, row], of R h + b'; for all cells but a GRU the same memory
  float* mixed = nullptr;   // [directions, B, line(H)], of r h where the reset comes before the product
  float* total = nullptr;   // [T, B, directions, line(O)], of h, and
  float* out = nullptr;     // [directions, B, line(H)], of what was projected, where there is a projection
  float* dh = nullptr;      // [directions, B, line(O)], from the step after
  float* dc = nullptr;      // [directions, B, H], of the LSTM's cell state
  float* x = nullptr;       // [T, B, line(I)], x in f32, 0 past a length; then dx
  float* before = nullptr;  // [T, B, line(O or H)], h before each step, or what was projected, of one direction
  float* dw = nullptr;      // a weight gradient that is not f32
  float* sums = nullptr;    // [G·H], then what sum_rows wants
  void* library = nullptr;
  LayerWeights room;
};

struct BackwardPass {
  const RecurrentQuery& q;
  const RecurrentBackward& t;
  LayerShape s;
  LayerReserve kept;
  BackwardScratch scratch;
  LayerWeights weights;
  cudaStream_t stream;

  ProductContext products() const {
    return {.card = q.device.device.index, .math = wide_math(q), .workspace = scratch.library, .stream = stream};
  }
  /// Gradients of a direction's gates [begin, end) over steps [step, step + rows / B).
  Matrix gradients(float* of, std::int64_t direction, std::int64_t step, std::int64_t rows, std::int64_t columns) const {
    return {of + step * s.batch * s.row() + direction * s.gate_row(), rows, columns, s.row(), 1, DType::f32};
  }
  static Matrix dense(float* data, std::int64_t rows, std::int64_t columns) {
    return {data, rows, columns, line(columns), 1, DType::f32};
  }
  Matrix total(std::int64_t direction, std::int64_t step, std::int64_t rows) const {
    const std::int64_t width = line(s.outputs);
    return {scratch.total + (step * s.batch * s.directions + direction) * width, rows, s.outputs, s.directions * width, 1};
  }
};

/// The gradients of weights, biases and x, when the loop has ended.
void recurrent_gradients(const BackwardPass& pass);

}  // namespace everglow::cuda
