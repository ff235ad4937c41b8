// Elementwise operations that a trainer needs beside the layers, on strided views.
#pragma once

#include <everglow/linear.hpp>
#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

/// copy: y = a (dtypes may differ); add: y = a + b; multiply: y = a b; scale: y = factor a; fill: y = factor;
/// dropout: y = keep ? a / (1 - p) : 0, then + b where b is given (its gradient is the same operation on dy, same seed);
/// activation: y = act(a); activation_gradient: y = b act'(a).
enum class Pointwise : std::uint8_t { copy, add, multiply, scale, fill, dropout, activation, activation_gradient };

struct PointwiseDescription {
  Pointwise operation = Pointwise::copy;
  DType dtype = DType::f32;  ///< of y and what is read: f32, f16, bf16 or f64, computed in f32 (f64 for f64) and rounded once
  Activation activation = Activation::none;
  float factor = 1;
  /// Probability of dropping. Element i of the run's tensor in logical order uses word i mod 4 of Philox4x32-10 with key
  /// dropout_seed and counter dropout_offset + i / 4; it is kept, times 1 / (1 - p), where the word is at least floor(p 2^32).
  float dropout = 0;
};
struct PointwiseSizes {
  std::int64_t elements = 0;  ///< most that y of a run has
};
struct PointwiseRun {
  ConstTensorView a{};                                 // any shape and strides; for copy of any of the four dtypes
  ConstTensorView b{};                                 // as a
  TensorView y{};                                      // as a; may be a or b
  std::uint64_t dropout_seed = 0, dropout_offset = 0;  // 0 for an operation other than dropout
  ConstTensorView dropout_state{};  // i64 [2]: seed and offset in the layer's memory, in place of the two numbers
};

/// Plan of an elementwise operation. y may be a or b (the same memory, dtype and strides); any other overlap with them throws, as
/// do operands and seeds that the operation does not use.
class EVERGLOW_API PointwisePlan {
 public:
  PointwisePlan(const PointwiseDescription& description, const PointwiseSizes& sizes,
                const DeviceDescription& device = Device::cpu(), const PlanOptions& options = {});
  const Explanation& explain() const noexcept;
  std::size_t workspace_bytes() const noexcept;
  std::uint64_t dropout_counters() const noexcept;  ///< Philox counters one run of the largest size uses
  void run(const PointwiseRun& tensors, const Workspace& workspace = {}, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
