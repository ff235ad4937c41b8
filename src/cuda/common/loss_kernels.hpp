// The passes of the classifier loss on a card between its products. Each starts work on the stream of the card that is current.
#pragma once

#include <everglow/loss.hpp>

#include "cuda/common/matrix.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace everglow::cuda {

/// Which rows count: those whose target is a class and not the ignored one.
struct LossTargets {
  ConstTensorView list{};  // [rows]
  std::int64_t classes = 0, ignore_index = -1;
};

/// The count of all rows, what every gradient is multiplied with, and whether a target is neither a class nor ignored.
struct LossCount {
  LossTargets targets;
  ConstTensorView scale{};  // f32 [1]; not given: 1
  bool divide_by_count = false;
  TensorView count{};        // f32 [1]; not given: not written
  TensorView status{};       // not given: not written
  double* factor = nullptr;  // [1]
};
void count_targets(const LossCount& count, cudaStream_t stream);

/// Rows [first, first + to.rows) of the list of targets: those that count are copied, the others are zeros. Both of one dtype, with
/// columns side by side.
void copy_counted_rows(const LossTargets& targets, std::int64_t first, const Matrix& from, const Matrix& to, cudaStream_t stream);

/// Logits without their bias, f32 rows on 16 bytes; become the losses of the rows and, where wanted, in place the gradients of the
/// logits, in the type of x: `gradients_of` tells where these lie.
struct LossRows {
  LossTargets targets;
  std::int64_t first = 0;    // of the targets
  Matrix logits{};           // [rows, classes], f32
  ConstTensorView bias{};    // [classes] of `dtype`; not given: none
  DType dtype = DType::f32;  // of the gradients
  double smoothing = 0;
  const double* factor = nullptr;  // null: no gradients
  double* losses = nullptr;        // [rows]
};
void loss_of_rows(const LossRows& rows, cudaStream_t stream);
Matrix gradients_of(const LossRows& rows);

/// loss [1] = the sum of the losses of all rows, in one order.
void sum_losses(const double* losses, std::int64_t rows, const TensorView& loss, cudaStream_t stream);

}  // namespace everglow::cuda
