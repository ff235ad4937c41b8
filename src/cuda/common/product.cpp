// Row-major C = A B as cuBLASLt is given it, column-major: the transposed product, Cᵀ = Bᵀ Aᵀ.
#include "cuda/common/product.hpp"

#include "gemm/cublaslt.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr std::int64_t most_size = (std::int64_t{1} << 31) - 1;  // cuBLASLt counts rows and columns in 32 bits

bool is_transposed(const Matrix& m) { return m.step != 1; }
std::int64_t leading(const Matrix& m) {
  const std::int64_t inner = is_transposed(m) ? m.rows : m.columns;
  return std::max(is_transposed(m) ? m.step : m.stride, inner);  // one row may have any stride
}

}  // namespace

void* take_library_scratch(Arena& arena) {
  constexpr std::size_t wanted = 256;
  std::byte* const memory = arena.take<std::byte>(static_cast<std::int64_t>(cublaslt::workspace_bytes + wanted));
  const auto past = reinterpret_cast<std::uintptr_t>(memory) % wanted;
  return memory == nullptr || past == 0 ? memory : memory + (wanted - past);
}

void multiply(const ProductContext& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (c.rows == 0 || c.columns == 0) return;
  const bool fits = context.library_scratch != nullptr && a.columns > 0 && std::max({c.rows, c.columns, a.columns}) <= most_size;
  const cublaslt::Form form{.m = c.columns,
                            .n = c.rows,
                            .k = a.columns,
                            .transpose_a = is_transposed(b),
                            .transpose_b = is_transposed(a),
                            .lda = leading(b),
                            .ldb = leading(a),
                            .ldd = leading(c),
                            .in = a.dtype,
                            .out = c.dtype,
                            .math = context.math,
                            .accumulate = accumulate};
  if (fits &&
      cublaslt::multiply(context.card, form, {.a = b.data, .b = a.data, .d = c.data}, context.library_scratch, context.stream))
    return;
  multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = accumulate}, context.stream);
}

}  // namespace everglow::cuda
