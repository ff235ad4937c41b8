// Rows of a storage type of 16 bits as f32 and back, for one instruction set. A row that is not given in whole vectors is read and
// written to its last element and no further.
#pragma once

#include <cstdint>

namespace everglow {

struct ConvertKernels {
  void (*widen)(const void* from, float* to, std::int64_t n) = nullptr;   // exact
  void (*narrow)(const float* from, void* to, std::int64_t n) = nullptr;  // to nearest even
};

namespace portable {
extern const ConvertKernels half_kernels, bfloat16_kernels;
}
namespace avx2 {
extern const ConvertKernels half_kernels, bfloat16_kernels;
}
namespace avx512 {
extern const ConvertKernels half_kernels, bfloat16_kernels;
}

}  // namespace everglow
