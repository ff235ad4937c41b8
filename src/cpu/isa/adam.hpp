// The inner loops of an optimiser step, built once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

/// What all elements of a step share.
struct AdamFactors {
  float gradient = 1;          // loss scale and clipping
  float keep1 = 0, take1 = 1;  // m = keep1 m + take1 g
  float keep2 = 0, take2 = 1;  // v = keep2 v + take2 g^2
  float rate = 0;              // rate / (1 - beta1^t)
  float root = 1;              // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float decay = 0;  // rate · weight decay
};

struct AdamPart {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::int64_t n = 0;
};

struct AdamKernels {
  /// The sum of the squares in double; the order depends on n alone.
  double (*sum_of_squares)(const float* values, std::int64_t n);
  void (*update)(const AdamPart&, const AdamFactors&);
};

namespace portable {
extern const AdamKernels adam_kernels;
}
namespace avx2 {
extern const AdamKernels adam_kernels;
}
namespace avx512 {
extern const AdamKernels adam_kernels;
}

}  // namespace everglow
