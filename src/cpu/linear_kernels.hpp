// The elementwise loops of the linear layer, compiled once for each instruction set: an activation, its gradient and column sums
// over a block of rows and columns. Plain structs and function pointers only.
#pragma once

#include <cstdint>

namespace everglow {

/// The order of everglow::Activation.
enum class ActivationKind : std::uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

struct ActivationBlock {
  ActivationKind kind = ActivationKind::none;
  std::int64_t rows = 0, columns = 0;
  const float* z = nullptr;  // before the activation; not read by the gradient of `none`
  std::int64_t ldz = 0;
  const float* dy = nullptr;  // gradient only
  std::int64_t lddy = 0;
  float* out = nullptr;  // act(z), or dy · act'(z); the gradient may leave it out
  std::int64_t ldout = 0;
  float* sums = nullptr;  // gradient only: [columns], set to the sums over rows in order; may be left out
};

struct LinearKernels {
  void (*activate)(const ActivationBlock&);
  void (*gradient)(const ActivationBlock&);
};

namespace portable {
extern const LinearKernels linear_kernels;
}
namespace avx2 {
extern const LinearKernels linear_kernels;
}
namespace avx512 {
extern const LinearKernels linear_kernels;
}

}  // namespace everglow
