// Products in row-major views, C = A B, by cuBLASLt where it takes them. It is given the transposed product, Cᵀ = Bᵀ Aᵀ.
#pragma once

#include "core/rows.hpp"
#include "cuda/common/matrix.hpp"
#include "gemm/cublaslt.hpp"

#include <optional>

namespace everglow::cuda {

/// One run's surroundings.
struct Context {
  const LinearQuery& query;
  cudaStream_t stream;
  void* library_scratch;
  int card() const { return query.device.device.index; }
};

/// The last sentence of a row that multiplies by cuBLASLt: it must be there where the card is.
Verdict accept_library(const DeviceDescription& device);

/// How cuBLASLt finds a matrix, column-major: as stored, or to be transposed.
struct Orientation {
  bool transposed = false;
  std::int64_t ld = 0;
};
/// None where neither columns nor rows stand side by side, one after the other.
std::optional<Orientation> stored(const Matrix& m);

/// What a product ends with.
struct Ending {
  cublaslt::Epilogue epilogue = cublaslt::Epilogue::none;
  void* bias = nullptr;  // elements side by side
  Matrix aux{};
  bool accumulate = false;
};

/// The form that cuBLASLt is asked for; none where it does not take views of such strides, sizes past 32 bits, or no k.
std::optional<cublaslt::Form> form_of(Math math, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending);

/// False, with nothing started, where cuBLASLt does not take the product.
bool multiply_library(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending);

/// Whether everything is on 16 bytes, sizes along rows too. Elsewhere cuBLASLt takes older kernels, which round a 16-bit result
/// before they add its bias (seen with 13.1 on an H200).
bool on_units(const Matrix& a, const Matrix& b, const Matrix& c);

}  // namespace everglow::cuda
