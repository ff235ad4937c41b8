// Matrices in the memory of a card and what the linear rows do with them beside library products. Every function starts work on the
// stream of the card that is current and returns.
#pragma once

#include <everglow/linear.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace everglow::cuda {

/// Element (row, column) lies at data[row * stride + column * step]; any strides.
struct Matrix {
  void* data = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0, step = 1;
  DType dtype = DType::f32;

  Matrix transposed() const { return {data, columns, rows, step, stride, dtype}; }
  /// Columns, or rows, [begin, begin + count).
  Matrix part_of_columns(std::int64_t begin, std::int64_t count) const {
    return {at(begin * step), rows, count, stride, step, dtype};
  }
  Matrix part_of_rows(std::int64_t begin, std::int64_t count) const {
    return {at(begin * stride), count, columns, stride, step, dtype};
  }
  void* at(std::int64_t offset) const {
    return data != nullptr ? static_cast<char*>(data) + offset * static_cast<std::int64_t>(size_of(dtype)) : nullptr;
  }
};
/// A [rows, columns] view; with no columns or rows of its own a vector is one row.
Matrix matrix_of(const ConstTensorView& view);

/// to = from, or to += from. Dtypes are the same, or one of them is f32.
void copy_matrix(const Matrix& from, const Matrix& to, bool accumulate, cudaStream_t stream);
/// y = act(z). z may be y.
void activate_matrix(const Matrix& z, const Matrix& y, Activation activation, cudaStream_t stream);
/// dz = dy act'(z).
void activation_gradient(const Matrix& z, const Matrix& dy, const Matrix& dz, Activation activation, cudaStream_t stream);

/// Writes 0.
void clear_matrix(const Matrix& m, cudaStream_t stream);

/// f32 elements of scratch that sum_rows wants.
std::int64_t sum_rows_scratch(std::int64_t rows, std::int64_t columns);
/// sums [1, columns] = or += sums of the rows of a, in an order that the sizes fix.
void sum_rows(const Matrix& a, const Matrix& sums, bool accumulate, float* scratch, cudaStream_t stream);

/// c = or += a b (+ bias [1, columns of c], or without data): any strides and 64-bit sizes, k summed in its order, so that an
/// element has the same bits whatever the other sizes are. a, b and bias of one dtype, c of that or f32.
struct PlainProduct {
  Matrix a, b, bias, c;
  bool accumulate = false;
};
void multiply_plain(const PlainProduct& product, cudaStream_t stream);

}  // namespace everglow::cuda
