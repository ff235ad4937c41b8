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
  DType dtype = DType::f32;
  Activation activation = Activation::none;
  float factor = 1;
  float dropout = 0;  ///< probability of dropping; element i of the logical tensor uses Philox word i (see docs of dropout)
};
struct PointwiseSizes {
  std::int64_t elements = 0;
};
struct PointwiseRun {
  ConstTensorView a{};  // any shape and strides
  ConstTensorView b{};  // as a
  TensorView y{};       // as a; may be a or b
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
};

/// Plan of an elementwise operation.
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
