// The elementwise loops of the linear layer, compiled once for each instruction set: an activation, its gradient and column sums
// over a block of rows and columns. Plain structs and function pointers only.
#pragma once

#include "core/stored.hpp"

#include <cstdint>

namespace everglow {

/// The order of everglow::Activation.
enum class ActivationKind : std::uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

struct ActivationBlock {
  ActivationKind kind = ActivationKind::none;
  std::int64_t rows = 0, columns = 0;
  Stored z{};             // before the activation; not read by the gradient of `none`
  Stored dy{};            // gradient only
  StoredOut out{};        // act(z), or dy · act'(z); the gradient may leave it out
  float* sums = nullptr;  // gradient only: [columns], set to the sums over rows in order; may be left out
};

/// Sums of parts, in order, and what stood there before where they are added to it.
struct BiasGradient {
  std::int64_t parts = 0, columns = 0;
  const float* sums = nullptr;  // [parts, columns]
  bool accumulate = false;
  StoredOut out{};
};

struct LinearKernels {
  void (*activate)(const ActivationBlock&);
  void (*gradient)(const ActivationBlock&);
  void (*bias_gradient)(const BiasGradient&);
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
