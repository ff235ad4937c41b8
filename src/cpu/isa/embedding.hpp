// The inner loop of the embedding's gradient, built once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

/// The uses of one table row: rows `first`, next[first], ... of dy until -1.
struct EmbeddingUses {
  const float* dy = nullptr;  // [indices, width]
  std::int64_t stride = 0;    // elements between rows of dy
  const std::int64_t* next = nullptr;
  std::int64_t first = -1;
};

struct EmbeddingKernels {
  /// out = (accumulate ? out : 0) + the used rows, added in the order of the list.
  void (*sum_rows)(float* out, std::int64_t width, const EmbeddingUses&, bool accumulate);
};

namespace portable {
extern const EmbeddingKernels embedding_kernels;
}
namespace avx2 {
extern const EmbeddingKernels embedding_kernels;
}
namespace avx512 {
extern const EmbeddingKernels embedding_kernels;
}

}  // namespace everglow
