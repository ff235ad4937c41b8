// Views as cuBLASLt's operands, and products in parts.
#include "cuda/common/library_product.hpp"

#include "cuda/common/linear_layout.hpp"

#include <algorithm>
#include <vector>

namespace everglow::cuda {
namespace {

using cublaslt::Form;

/// How cuBLASLt finds a matrix, column-major: as stored, or to be transposed; none where it has neither columns nor rows side by
/// side.
struct Orientation {
  bool transposed = false;
  std::int64_t ld = 0;
};
std::optional<Orientation> stored(const Matrix& m) {
  if ((m.step == 1 || m.columns == 1) && (m.rows == 1 || m.stride >= m.columns))
    return Orientation{false, m.rows == 1 ? m.columns : m.stride};
  if ((m.stride == 1 || m.rows == 1) && (m.columns == 1 || m.step >= m.rows))
    return Orientation{true, m.columns == 1 ? m.rows : m.step};
  return {};
}

struct Part {
  std::int64_t begin, count;
};
/// All of `size`, or its whole units and what is left.
std::vector<Part> parts_of(std::int64_t size, bool split, DType dtype) {
  const std::int64_t whole = whole_units(size, dtype);
  if (!split || whole == 0 || whole == size) return {{0, size}};
  return {{0, whole}, {whole, size - whole}};
}

/// The size of a matrix along which its elements lie side by side.
std::int64_t along(const Matrix& m) { return m.step == 1 || m.columns == 1 ? m.columns : m.rows; }

}  // namespace

Verdict accept_library(const DeviceDescription& device) {
  if (!device.present) return accept();
  const BackendStatus library = cublaslt::status();
  return library.usable ? accept() : decline(library.reason);
}

std::optional<Form> form_of(const LinearQuery& query, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
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
              .math = query.options.math,
              .epilogue = ending.epilogue,
              .accumulate = ending.accumulate};
}

bool multiply_library(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
  const std::optional<Form> form = form_of(context.query, a, b, c, ending);
  return form && cublaslt::multiply(context.card(), *form, {b.data, a.data, c.data, ending.bias, ending.aux.data},
                                    context.library_scratch, context.stream);
}

bool worth_parts(const LinearQuery& query, const Matrix& c, std::int64_t k) {
  constexpr double least = 2e9;  // FLOP: some 5 us of an H200, as long as a launch of its own and a narrow product
  const bool tensor_cores = query.description.dtype != DType::f32 || query.options.math == Math::tf32;
  return tensor_cores && 2.0 * static_cast<double>(c.rows) * static_cast<double>(c.columns) * static_cast<double>(k) >= least;
}

bool on_units(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (const Matrix* m : {&a, &b, &c})
    if (needs_staging(*m) || whole_units(along(*m), m->dtype) != along(*m)) return false;
  return true;
}

void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (c.rows == 0 || c.columns == 0) return;
  const bool split = worth_parts(context.query, c, a.columns);
  // The rows of A matter where they lie side by side.
  const std::optional<Orientation> right = stored(a);
  for (const Part& rows : parts_of(c.rows, split && right && right->transposed, a.dtype))
    for (const Part& columns : parts_of(c.columns, split, a.dtype)) {
      const Matrix left = a.part_of_rows(rows.begin, rows.count), other = b.part_of_columns(columns.begin, columns.count);
      const Matrix to = c.part_of_rows(rows.begin, rows.count).part_of_columns(columns.begin, columns.count);
      if (!multiply_library(context, left, other, to, {.accumulate = accumulate}))
        multiply_plain({.a = left, .b = other, .bias = {}, .c = to, .accumulate = accumulate}, context.stream);
    }
}

void multiply_odd_k(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, void* wide) {
  Matrix sums = c;
  sums.dtype = DType::f32;
  sums = staged_matrix(sums, wide);
  sums.columns = b.columns;
  const std::int64_t k = a.columns, whole = whole_units(k, a.dtype);
  multiply(context, a.part_of_columns(0, whole), b.part_of_rows(0, whole), sums, false);
  if (whole < k)
    multiply_plain({.a = a.part_of_columns(whole, k - whole),
                    .b = b.part_of_rows(whole, k - whole),
                    .bias = {},
                    .c = sums,
                    .accumulate = true},
                   context.stream);
  copy_matrix(sums.part_of_columns(0, c.columns), c, false, context.stream);
}

}  // namespace everglow::cuda
