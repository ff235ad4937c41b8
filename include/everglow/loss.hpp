// Classifier and label-smoothed cross entropy in one: logits = x Wᵀ + b, in blocks of rows, so the full logits never exist.
//   loss of a row = (1 - s) (lse - z_target) + s (lse - mean(z))     (Szegedy et al., arXiv 1512.00567, spread over all classes)
#pragma once

#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

struct LossDescription {
  std::int64_t inputs = 0;
  std::int64_t classes = 0;
  DType dtype = DType::f32;
  float smoothing = 0;             ///< 0 ... 1, spread over all classes
  std::int64_t ignore_index = -1;  ///< rows with this target count nothing and get no gradient
  bool training = false;           ///< forward_backward may be called
};
struct LossSizes {
  std::int64_t rows = 0;
};
struct LossForward {
  ConstTensorView x{};        // [N, I]
  ConstTensorView weight{};   // [classes, I]
  ConstTensorView bias{};     // [classes]; not given: none
  ConstTensorView targets{};  // i32 or i64 [N]
  TensorView loss{};          // f32 [1] (f64 with f64): the sum over counted rows
  TensorView count{};         // f32 [1]: number of counted rows; not given: not written
  TensorView status{};        // u32 [1] in an i32 view; a run only ORs into it (check_status)
};
struct LossBackward {
  LossForward forward{};
  ConstTensorView scale{};      // f32 [1]: factor of every gradient; not given: 1
  bool divide_by_count = true;  // gradients of the mean (scale / counted rows, at least 1) instead of the sum
  TensorView dx{};              // [N, I]; 0 for ignored rows
  TensorView dweight{};         // [classes, I], f32 or the storage type
  TensorView dbias{};           // [classes], likewise
  bool accumulate = false;      // add into dweight and dbias
};

/// Plan of the fused classifier loss. What is written (loss, count, gradients) must be apart from everything else of the call. On a
/// CPU a target that is neither a class nor ignore_index throws before anything is written; on a GPU its row is ignored and
/// `status` gets status_indices.
class EVERGLOW_API LossPlan {
 public:
  LossPlan(const LossDescription& description, const LossSizes& sizes, const DeviceDescription& device = Device::cpu(),
           const PlanOptions& options = {});
  const Explanation& explain() const;  ///< products, times and advice are made at the first call
  std::size_t workspace_bytes() const noexcept;
  void forward(const LossForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void forward_backward(const LossBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
