// The inner loops of the classifier loss on blocks of logits, built once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

/// What the loss needs to know of a row of logits.
struct LogitStatistics {
  float top = 0;               // the largest
  float sum = 0;               // of the logits themselves
  float sum_exponentials = 0;  // of e^(z - top)
};

inline constexpr int loss_chunk = 8;  // rows whose gradients are written together

/// A few rows of exponentials that become gradients.
struct LossChunk {
  float* values = nullptr;  // [rows, n]
  std::int64_t stride = 0;
  int rows = 0;  // at most loss_chunk
  std::int64_t n = 0;
  float scales[loss_chunk] = {};  // of each row
  float shift = 0;
  float* column_sums = nullptr;  // [n], written; null: not wanted
};

struct LossKernels {
  /// Turns n >= 1 logits into e^(z - top) in place.
  LogitStatistics (*exponentials)(float* logits, std::int64_t n);
  /// values = values scales[row] - shift, and the sums over the rows.
  void (*gradients)(const LossChunk&);
  /// out = (accumulate ? out : 0) + the sum over the rows of `values` [rows, n].
  void (*sum_rows)(float* out, const float* values, std::int64_t stride, std::int64_t rows, std::int64_t n, bool accumulate);
};

namespace portable {
extern const LossKernels loss_kernels;
}
namespace avx2 {
extern const LossKernels loss_kernels;
}
namespace avx512 {
extern const LossKernels loss_kernels;
}

}  // namespace everglow
