// Products inside a layer on a card: cuBLASLt where it pays and has an algorithm, else the plain product, which takes any matrices.
#pragma once

#include "cuda/common/matrix.hpp"

#include <everglow/plan.hpp>

#include <cstddef>

namespace everglow::cuda {

struct ProductContext {
  int card = 0;               // the current one
  Math math = Math::ieee;     // of f32 operands
  void* workspace = nullptr;  // what product_workspace asks for; null: no product asks cuBLASLt
  cudaStream_t stream = nullptr;
};

/// Bytes of workspace for products of which the largest has so many multiply-adds.
std::size_t product_workspace(double largest);

/// c = or += a b: a and b of one type and c in f32. Rows or columns of a and b stand side by side, rows of c do.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context);

}  // namespace everglow::cuda
