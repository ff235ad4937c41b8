// Products inside a layer on a card: cuBLASLt where it pays and has an algorithm, else the plain product, which takes any matrices.
#pragma once

#include "cuda/common/matrix.hpp"

#include <everglow/plan.hpp>

#include <cstddef>

namespace everglow::cuda {

struct ProductContext {
  int card = 0;               // the current one
  Math math = Math::ieee;     // of f32 operands
  void* workspace = nullptr;  // of take_library_scratch; null: no product asks cuBLASLt
  cudaStream_t stream = nullptr;
};

/// Whether any of the products asks cuBLASLt, of which the largest has so many multiply-adds.
bool asks_library(double largest);

/// c = or += a b: a and b of one type and c in f32. Rows or columns of a and b stand side by side, rows of c do.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context);

}  // namespace everglow::cuda
