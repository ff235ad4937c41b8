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

/// What a product ends with.
struct Ending {
  cublaslt::Epilogue epilogue = cublaslt::Epilogue::none;
  void* bias = nullptr;  // elements side by side
  Matrix aux{};
  bool accumulate = false;
};

/// The form that cuBLASLt is asked for; none where it does not take views of such strides, sizes past 32 bits, or no k.
std::optional<cublaslt::Form> form_of(const LinearQuery& query, const Matrix& a, const Matrix& b, const Matrix& c,
                                      const Ending& ending);

/// False, with nothing started, where cuBLASLt does not take the product.
bool multiply_library(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending);

/// c = or += a b, by whoever takes it. A large product whose sizes are not multiples of 16 bytes is made in parts, of which all but
/// narrow ones are.
void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

/// c = a b where k is odd: its whole part into `wide`, f32 with the rows and columns of c on 64 bytes, then the rest, then rounded
/// once. b may have columns past those of c, to whole units.
void multiply_odd_k(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, void* wide);

/// Whether everything is on 16 bytes, sizes along rows too. Elsewhere cuBLASLt takes older kernels, which round a 16-bit result
/// before they add its bias (seen with 13.1 on an H200).
bool on_units(const Matrix& a, const Matrix& b, const Matrix& c);

/// Whether a product is large enough for more launches to pay, and is made by tensor cores, which want whole units.
bool worth_parts(const LinearQuery& query, const Matrix& c, std::int64_t k);

}  // namespace everglow::cuda
