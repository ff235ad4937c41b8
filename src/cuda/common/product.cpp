// Who multiplies inside a layer.
#include "cuda/common/product.hpp"

#include "cuda/common/library_product.hpp"

namespace everglow::cuda {
namespace {

/// Multiply-adds from which a product asks cuBLASLt: below, its call costs the host more than a card needs for the whole product.
constexpr double library_pays = 1 << 17;

bool library_multiplies(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context) {
  if (context.workspace == nullptr) return false;
  if (!asks_library(static_cast<double>(c.rows) * static_cast<double>(c.columns) * static_cast<double>(a.columns))) return false;
  static const bool usable = cublaslt::status().usable;
  if (!usable) return false;
  const std::optional<cublaslt::Form> form = form_of(context.math, a, b, c, {.accumulate = accumulate});
  // It counts columns first: what is [m, n] by rows here is [n, m] there, so that a and b change places.
  return form &&
         cublaslt::multiply(context.card, *form, {.a = b.data, .b = a.data, .d = c.data}, context.workspace, context.stream);
}

}  // namespace

bool asks_library(double largest) { return largest >= library_pays; }

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, const ProductContext& context) {
  if (!library_multiplies(a, b, c, accumulate, context))
    multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = accumulate}, context.stream);
}

}  // namespace everglow::cuda
