// Products of matrices for layers that need them besides their own kernels: by cuBLASLt where it may and can, else by the plain
// kernel.
#pragma once

#include "cuda/common/matrix.hpp"

#include <everglow/plan.hpp>

namespace everglow::cuda {

struct ProductContext {
  int card = 0;  // the current one
  Math math = Math::ieee;
  void* library_scratch = nullptr;  // cublaslt::workspace_bytes; null: the plain kernel alone, whose sums have one order
  cudaStream_t stream = nullptr;
};

/// c = or += a b. c has columns side by side; a and b columns or rows. k may be 0. a and b of one dtype, c of that or f32.
void multiply(const ProductContext& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace everglow::cuda
