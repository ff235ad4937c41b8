// The passes of a softmax over one row or a part of it, on each storage type. Plain structs only.
#pragma once

#include <everglow/storage.hpp>

#include <cstdint>

namespace everglow {

/// Maximum of a part of a row, and Σ exp(x - maximum). A part of nothing but -inf has sum 0; a NaN makes the sum NaN.
struct SoftmaxPart {
  float top, sum;
};

template <class T>
struct SoftmaxPasses {
  SoftmaxPart (*reduce)(const T* x, std::int64_t n);
  /// y = exp(x - top) · factor, or, log, x - top - factor. y may be x.
  void (*quotient)(const T* x, T* y, std::int64_t n, SoftmaxPart row, bool log);
  /// y = value
  void (*fill)(T* y, std::int64_t n, float value);
  /// Σ y dy, or, log, Σ dy.
  float (*gradient_sum)(const T* y, const T* dy, std::int64_t n, bool log);
  /// dx = y (dy - sum), or, log, dy - exp(y) sum. dx may be y or dy.
  void (*gradient)(const T* y, const T* dy, T* dx, std::int64_t n, float sum, bool log);
};

struct SoftmaxKernels {
  SoftmaxPasses<float> f32;
  SoftmaxPasses<Half> f16;
  SoftmaxPasses<BFloat16> bf16;
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
