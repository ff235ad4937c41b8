// Fully-connected layer: y = act(x Wᵀ + b), its activation gradient and its weight gradient.
#pragma once

#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

/// act(z). gelu_tanh: 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z³))); gelu_erf: z Phi(z) (Hendrycks & Gimpel, arXiv 1606.08415);
/// silu: z / (1 + exp(-z)).
enum class Activation : std::uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

/// How W is stored: [outputs, inputs] (PyTorch, Caffe) or [inputs, outputs] (TensorFlow, Keras, JAX).
enum class LinearLayout : std::uint8_t { outputs_inputs, inputs_outputs };

struct LinearDescription {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  DType dtype = DType::f32;  ///< of x, W, b, y; weight gradients may be f32 instead
  LinearLayout layout = LinearLayout::outputs_inputs;
  Activation activation = Activation::none;
  bool training = false;  ///< backward may be called
};

/// The largest sizes a plan is made for; a run may bring fewer rows.
struct LinearSizes {
  std::int64_t batch = 0;
};

/// Views may have any strides: transposed, with gaps between rows and elements, and, where they are only read, repeated (stride 0).
/// Rows on plan.preferred_stride with elements side by side are fast. Sums are f32 (f64 for f64), rounded once where they are
/// stored in 16 bits. y and preactivation must be apart from one another and from all that is read.
struct LinearForward {
  ConstTensorView x{};         // [batch, inputs], or any rank whose leading dimensions fold into batch
  ConstTensorView weight{};    // [outputs, inputs] or [inputs, outputs]; not read where packed is given
  ConstTensorView bias{};      // [outputs]; not given: none
  TensorView y{};              // [batch, outputs]
  TensorView preactivation{};  // [batch, outputs], x Wᵀ + b; needed where training and activation is not none; y may be made from
                               // it as it is stored
  const PackedWeights* packed = nullptr;
};

/// A gradient that is not given is not computed. dx, dweight and dbias must be apart from one another and from all that is read.
struct LinearBackward {
  ConstTensorView dy{};             // [batch, outputs]
  ConstTensorView x{};              // [batch, inputs]; needed for dweight
  ConstTensorView weight{};         // needed for dx; not read where packed is given
  ConstTensorView preactivation{};  // [batch, outputs]; needed where activation is not none
  TensorView dx{};                  // [batch, inputs]
  TensorView dweight{};             // as weight, f32 or the storage type
  TensorView dbias{};               // [outputs], f32 or the storage type
  const PackedWeights* packed = nullptr;
  bool accumulate = false;  // add into dweight and dbias
};

/// Plan of a fully-connected layer. Immutable; threads may share it when each brings its own workspace.
class EVERGLOW_API LinearPlan {
 public:
  /// Throws Error(unsupported) with every row's reason where no row accepts.
  LinearPlan(const LinearDescription& description, const LinearSizes& sizes, const DeviceDescription& device = Device::cpu(),
             const PlanOptions& options = {});
  const Explanation& explain() const;            ///< products, times and advice are made at the first call
  std::size_t workspace_bytes() const noexcept;  ///< scratch that forward and backward need at the largest sizes
  std::size_t packed_bytes() const noexcept;     ///< bytes of packed weights; 0: this row has no packed form
  std::int64_t preferred_stride(std::int64_t columns) const noexcept;  ///< elements between rows that keep rows on 64 bytes
  void pack(const ConstTensorView& weight, PackedWeights& packed, const Stream& stream = {}) const;
  /// Makes what a vendor's library otherwise makes at the first run of a shape, which then takes milliseconds longer: forward with
  /// and without bias and, where the plan trains, the gradients in f32 and in the storage type, accumulated or not, for dense
  /// tensors of these sizes (at most the plan's). Other strides are made at their first run. It is kept for all plans of the
  /// process while it is among the 256 that were used last. Nothing happens where the row has no products of oneDNN: on a GPU a
  /// plain run makes what later ones use. Throws as a run does where the sizes or the device are not the plan's.
  void prepare(const LinearSizes& sizes) const;
  /// Runs forward, or backward, and measures on the way: of each product that cuBLASLt makes, every algorithm that its heuristic
  /// names runs some times on the tensors that are given, and where one is clearly faster than the first, runs take it from then
  /// on, and explain() of plans made later names it. Choices hold for the same sizes, strides, types, epilogue and alignment. They
  /// are kept by device, compute capability and library version in the file that EVERGLOW_TUNED names, else in
  /// $XDG_CACHE_HOME/everglow/tuned.txt or ~/.cache/everglow/tuned.txt (none where the variable is empty), which a process reads
  /// when it first multiplies; lines that are damaged do not count. How many products were measured: those that were before are
  /// not, and elsewhere than in cuBLASLt's rows none are. The stream is waited for, so no graph may be under capture; what
  /// accumulates is added to many times. Throws as the run does, and Error(io) where the file cannot be written; the choices hold
  /// in the process then all the same.
  int tune(const LinearForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  int tune(const LinearBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void forward(const LinearForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void backward(const LinearBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
