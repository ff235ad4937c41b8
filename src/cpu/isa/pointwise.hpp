// The inner loops of elementwise operations on contiguous f32, built once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

/// The activations that have a loop; the order of everglow::Activation without `none`.
enum class ActivationKernel : std::uint8_t { relu, gelu_tanh, gelu_erf, silu };

struct PointwiseOperands {
  const float* a = nullptr;
  const float* b = nullptr;  // null where the operation has none
  float* y = nullptr;        // may be a or b
  std::int64_t n = 0;
};

struct PointwiseKernels {
  void (*add)(const PointwiseOperands&);
  void (*multiply)(const PointwiseOperands&);
  void (*scale)(const PointwiseOperands&, float factor);
  void (*fill)(const PointwiseOperands&, float value);
  void (*activation)(const PointwiseOperands&, ActivationKernel);
  void (*activation_gradient)(const PointwiseOperands&, ActivationKernel);
  /// y = words[i] >= threshold ? a scale : 0, plus b where it is not null.
  void (*dropout)(const PointwiseOperands&, const std::uint32_t* words, std::uint32_t threshold, float scale);
  /// The four words of each counter from `first` on, `counters` of them (a multiple of philox_batch).
  void (*philox)(std::uint64_t key, std::uint64_t first, std::int64_t counters, std::uint32_t* words);
};

inline constexpr int philox_batch = 32;  // counters that run side by side

namespace portable {
extern const PointwiseKernels pointwise_kernels;
}
namespace avx2 {
extern const PointwiseKernels pointwise_kernels;
}
namespace avx512 {
extern const PointwiseKernels pointwise_kernels;
}

}  // namespace everglow
