// Who multiplies inside a layer.
#include "cuda/common/product.hpp"

#include "gemm/cublaslt.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

/// Multiply-adds from which a product asks cuBLASLt: below, its call costs the host more than a card needs for the whole product.
constexpr double library_pays = 1 << 17;

struct Operand {
  bool transposed = false;
  std::int64_t ld = 0;
  bool fits = true;  // lines that stand apart, one after the other: all that the library knows
};
Operand operand_of(const Matrix& m) {
  const bool transposed = m.step != 1;
  const std::int64_t apart = transposed ? m.step : m.stride;
  const std::int64_t length = transposed ? m.rows : m.columns, lines = transposed ? m.columns : m.rows;
  return {transposed, std::max(apart, length), (lines == 1 || apart >= length) && (!transposed || m.stride == 1)};
}

bool library_multiplies(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context) {
  if (context.workspace == nullptr) return false;
  if (!asks_library(static_cast<double>(c.rows) * static_cast<double>(c.columns) * static_cast<double>(a.columns))) return false;
  static const bool usable = cublaslt::status().usable;
  if (!usable) return false;
  // cuBLASLt counts columns first: what is [m, n] by rows here is [n, m] there, so that a and b change places.
  const Operand left = operand_of(b), right = operand_of(a), to = operand_of(c);
  if (!left.fits || !right.fits || !to.fits || to.transposed) return false;
  if (std::max({c.rows, c.columns, a.columns}) > cublaslt::most_size) return false;
  const cublaslt::Form form{.m = c.columns,
                            .n = c.rows,
                            .k = a.columns,
                            .transpose_a = left.transposed,
                            .transpose_b = right.transposed,
                            .lda = left.ld,
                            .ldb = right.ld,
                            .ldd = to.ld,
                            .in = a.dtype,
                            .out = DType::f32,
                            .math = context.math,
                            .accumulate = accumulate};
  return cublaslt::multiply(context.card, form, {.a = b.data, .b = a.data, .d = c.data}, context.workspace, context.stream);
}

}  // namespace

bool asks_library(double largest) { return largest >= library_pays; }

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context) {
  if (!library_multiplies(a, b, c, accumulate, context))
    multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = accumulate}, context.stream);
}

}  // namespace everglow::cuda
