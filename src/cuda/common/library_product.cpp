// Views as cuBLASLt's operands.
#include "cuda/common/library_product.hpp"

#include "cuda/common/linear_layout.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

using cublaslt::Form;

/// The size of a matrix along which its elements lie side by side.
std::int64_t along(const Matrix& m) { return m.step == 1 || m.columns == 1 ? m.columns : m.rows; }

}  // namespace

Verdict accept_library(const DeviceDescription& device) {
  if (!device.present) return accept();
  const BackendStatus library = cublaslt::status();
  return library.usable ? accept() : decline(library.reason);
}

std::optional<Orientation> stored(const Matrix& m) {
  if ((m.step == 1 || m.columns == 1) && (m.rows == 1 || m.stride >= m.columns))
    return Orientation{false, m.rows == 1 ? m.columns : m.stride};
  if ((m.stride == 1 || m.rows == 1) && (m.columns == 1 || m.step >= m.rows))
    return Orientation{true, m.columns == 1 ? m.rows : m.step};
  return {};
}

std::optional<Form> form_of(Math math, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
  const std::optional<Orientation> left = stored(b), right = stored(a), result = stored(c);
  const bool fits =
      left && right && result && !result->transposed && std::max({c.rows, c.columns, a.columns}) <= cublaslt::most_size;
  if (!fits || a.columns == 0) return {};
  return Form{.m = c.columns,
              .n = c.rows,
              .k = a.columns,
              .transpose_a = left->transposed,
              .transpose_b = right->transposed,
              .lda = left->ld,
              .ldb = right->ld,
              .ldd = result->ld,
              .ld_aux = ending.aux.data != nullptr ? ending.aux.stride : 0,
              .in = a.dtype,
              .out = c.dtype,
              .math = math,
              .epilogue = ending.epilogue,
              .accumulate = ending.accumulate};
}

bool multiply_library(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
  const std::optional<Form> form = form_of(context.query.options.math, a, b, c, ending);
  return form && cublaslt::multiply(context.card(), *form, {b.data, a.data, c.data, ending.bias, ending.aux.data},
                                    context.library_scratch, context.stream);
}

bool on_units(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (const Matrix* m : {&a, &b, &c})
    if (needs_staging(*m) || along(*m) % unit_of(m->dtype) != 0) return false;
  return true;
}

}  // namespace everglow::cuda
