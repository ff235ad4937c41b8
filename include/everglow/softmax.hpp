// Softmax over the last dimension, one pass for maximum and sum (Milakov & Gimelshein, arXiv 1805.02867).
#pragma once

#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

/// What a row of nothing but -inf becomes.
enum class MaskedRow : std::uint8_t { nan, zero };

struct SoftmaxDescription {
  DType dtype = DType::f32;
  bool log = false;  ///< log-softmax
  MaskedRow masked_row = MaskedRow::nan;
};

struct SoftmaxSizes {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct SoftmaxForward {
  ConstTensorView x{};  // [..., columns], last stride 1; leading dimensions fold into rows, at most the plan's
  TensorView y{};       // as x; may be x
};
struct SoftmaxBackward {
  ConstTensorView y{};   // as forward wrote it
  ConstTensorView dy{};  // as y
  TensorView dx{};       // as y; may be dy or y
};

/// Plan of a softmax. A NaN in a row makes the row NaN; +inf makes it NaN as exp(inf - inf) does.
class EVERGLOW_API SoftmaxPlan {
 public:
  SoftmaxPlan(const SoftmaxDescription& description, const SoftmaxSizes& sizes, const DeviceDescription& device = Device::cpu(),
              const PlanOptions& options = {});
  const Explanation& explain() const noexcept;
  std::size_t workspace_bytes() const noexcept;
  void forward(const SoftmaxForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void backward(const SoftmaxBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
