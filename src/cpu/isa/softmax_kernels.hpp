// The passes of a softmax over one row or a part of it. Plain structs only.
#pragma once

#include <cstdint>

namespace everglow {

/// Maximum of a part of a row, and Σ exp(x - maximum). A part of nothing but -inf has sum 0; a NaN makes the sum NaN.
struct SoftmaxPart {
  float top, sum;
};

struct SoftmaxKernels {
  SoftmaxPart (*reduce)(const float* x, std::int64_t n);
  /// y = exp(x - top) · factor, or, log, x - top - factor. y may be x.
  void (*quotient)(const float* x, float* y, std::int64_t n, SoftmaxPart row, bool log);
  /// Σ y dy, or, log, Σ dy.
  float (*gradient_sum)(const float* y, const float* dy, std::int64_t n, bool log);
  /// dx = y (dy - sum), or, log, dy - exp(y) sum. dx may be y or dy.
  void (*gradient)(const float* y, const float* dy, float* dx, std::int64_t n, float sum, bool log);
};

namespace portable {
extern const SoftmaxKernels softmax_kernels;
}
namespace avx2 {
extern const SoftmaxKernels softmax_kernels;
}
namespace avx512 {
extern const SoftmaxKernels softmax_kernels;
}

}  // namespace everglow
