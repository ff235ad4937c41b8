// Plain loops behind the interface of gemm.hpp.
#include "gemm/gemm.hpp"

namespace everglow {

bool has_onednn() { return false; }

void gemm(const Gemm& p, const GemmContext&) {
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l)
        sum += p.a[p.transpose_a ? l * p.lda + i : i * p.lda + l] * p.b[p.transpose_b ? j * p.ldb + l : l * p.ldb + j];
      if (p.bias != nullptr) sum += p.bias[j];
      float& c = p.c[i * p.ldc + j];
      c = p.accumulate ? c + sum : sum;
    }
}

std::size_t packed_matrix_bytes(Isa, std::int64_t k, std::int64_t n) { return static_cast<std::size_t>(k * n) * sizeof(float); }
std::int64_t packed_panel_columns(Isa) { return 1; }

void pack_matrix(Isa, bool transpose_b, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, void* packed) {
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t l = 0; l < k; ++l) static_cast<float*>(packed)[j * k + l] = b[transpose_b ? j * ldb + l : l * ldb + j];
}

void gemm_packed(Isa, std::int64_t m, std::int64_t k, std::int64_t, const float* a, std::int64_t lda, const void* packed,
                 std::int64_t column_begin, std::int64_t column_end, float* c, std::int64_t ldc, bool accumulate) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = column_begin; j < column_end; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < k; ++l) sum += a[i * lda + l] * static_cast<const float*>(packed)[j * k + l];
      c[i * ldc + j] = accumulate ? c[i * ldc + j] + sum : sum;
    }
}

}  // namespace everglow
