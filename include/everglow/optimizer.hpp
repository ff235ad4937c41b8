// Adam (Kingma & Ba, arXiv 1412.6980) over many tensors in one call, with clipping by the global norm.
#pragma once

#include <everglow/plan.hpp>

#include <memory>
#include <span>

namespace everglow {

struct AdamDescription {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;  ///< step: rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
  float weight_decay = 0;                               ///< decoupled (AdamW, arXiv 1711.05101)
  float clip = 0;                                       ///< largest global L2 norm of the gradients; 0: no clipping
  std::int64_t scale_interval = 2000;                   ///< with a scaler: good steps after which the loss scale is doubled
};
struct AdamSizes {
  std::int64_t parameters = 0;  ///< elements of all tensors together
  std::int64_t tensors = 0;
};
/// One tensor of the model; all dense and of the same shape. The parameter and the moments are f32.
struct AdamTensor {
  TensorView parameter{};
  ConstTensorView gradient{};  // f32, f16 or bf16
  TensorView m{}, v{};         // first and second moment, zero before step 1
  TensorView copy{};           // f16 or bf16 copy of the parameter; not given: none
};
/// Scalars are views on the device so that a step needs no host synchronisation.
struct AdamStep {
  std::span<const AdamTensor> tensors{};
  TensorView step{};        // i64 [1]: number of steps taken, counted up by this call
  ConstTensorView rate{};   // f32 [1]; with a scaler [n]: the entry (skipped steps mod n) is taken
  ConstTensorView scale{};  // f32 [1]: gradients are divided by it (loss scale); not given: 1
  TensorView norm{};        // f32 [1]: global norm before clipping; not given: not written
  TensorView overflow{};    // i32 [1]: 1 and nothing is changed where a gradient is not finite; not given: not checked
  /// f32 [3]: a dynamic loss scale in place of `scale`, the good steps since it changed, and the steps skipped in all. This call
  /// halves the scale where it overflows and doubles it after scale_interval good steps, within 2^-24 ... 2^24. Needs `overflow`.
  /// Several rates serve a caller that learns of a skipped step later than the device, and whose schedule does not count it.
  TensorView scaler{};
};

/// Plan of one optimiser step. What it writes (parameters, moments, copies, step, norm, overflow, scaler) must be apart from
/// everything else of the call. A gradient that is not finite is no error: it is reported in `overflow` where that is given.
class EVERGLOW_API AdamPlan {
 public:
  AdamPlan(const AdamDescription& description, const AdamSizes& sizes, const DeviceDescription& device = Device::cpu(),
           const PlanOptions& options = {});
  const Explanation& explain() const noexcept;
  std::size_t workspace_bytes() const noexcept;
  void step(const AdamStep& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
