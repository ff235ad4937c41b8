// Products of matrices for layers that need them besides their own kernels: by cuBLASLt where it may and can, else by the plain
// kernel.
#pragma once

#include "core/arena.hpp"
#include "cuda/common/matrix.hpp"

#include <everglow/plan.hpp>

namespace everglow::cuda {

/// cublaslt::workspace_bytes on 256 bytes, as cuBLASLt wants them; an arena's memory is on 64.
void* take_library_scratch(Arena& arena);

struct ProductContext {
  int card = 0;  // the current one
  Math math = Math::ieee;
  void* library_scratch = nullptr;  // null: the plain kernel alone, whose sums have one order
  cudaStream_t stream = nullptr;
};

/// c = or += a b. c has columns side by side; a and b columns or rows. k may be 0. a and b of one dtype, c of that or f32.
void multiply(const ProductContext& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace everglow::cuda
