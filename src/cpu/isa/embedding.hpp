// The inner loop of the embedding's gradient on each storage type, built once for each instruction set.
#pragma once

#include <everglow/storage.hpp>

#include <cstddef>
#include <cstdint>

namespace everglow {

/// The uses of one table row: rows `first`, next[first], ... of dy until -1.
template <class T>
struct EmbeddingUses {
  const T* dy = nullptr;    // [indices, width]
  std::int64_t stride = 0;  // elements between rows of dy
  const std::int64_t* next = nullptr;
  std::int64_t first = -1;
};

/// out = (accumulate ? out : 0) + the used rows, added in f32 in the order of the list, and rounded once.
template <class T, class Out>
using SumRows = void (*)(Out* out, std::int64_t width, const EmbeddingUses<T>&, bool accumulate);

struct EmbeddingKernels {
  SumRows<float, float> f32;
  SumRows<Half, Half> f16;
  SumRows<Half, float> f16_to_f32;
  SumRows<BFloat16, BFloat16> bf16;
  SumRows<BFloat16, float> bf16_to_f32;
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
