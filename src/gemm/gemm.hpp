// Matrix products of f32 on a CPU, row-major: C[m, n] = A[m, k] · B[k, n] (+ bias[n]) (+ C). The one place that knows GEMM
// libraries: oneDNN where it may serve, else our own packed micro-kernel, whose order over k does not depend on threads, m or n.
#pragma once

#include "core/isa.hpp"

#include <cstddef>
#include <cstdint>

namespace everglow {

/// Called for each block of C when it is complete, by the thread that made it, while it is in cache.
struct GemmFinish {
  void (*run)(const void* context, std::int64_t row_begin, std::int64_t row_end, std::int64_t column_begin,
              std::int64_t column_end) = nullptr;
  const void* context = nullptr;
};

struct Gemm {
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;  // elements between stored rows
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* bias = nullptr;  // [n]
  bool accumulate = false;      // add to C
  GemmFinish finish{};
};

struct GemmContext {
  int threads = 1;
  Isa isa = Isa::portable;
  bool library = true;  // oneDNN may serve; false: our micro-kernel, the same bits for any thread count, m and n
};

bool has_onednn();
/// m, n or k may be 0: k = 0 writes bias or zeros (or leaves C when accumulating). What it needs beside C is not part of a
/// workspace: each thread keeps at most 2 MiB to pack into until it ends, whatever the sizes, and the calling thread oneDNN's
/// scratchpad of at most 64 MiB (a product that asks for more goes to our micro-kernel). Throws Error(out_of_memory) where these
/// cannot be had.
void gemm(const Gemm& product, const GemmContext& context);

/// B packed once for many products: panels of columns, each k long. Used by the recurrent loop, one thread a call.
std::size_t packed_matrix_bytes(Isa isa, std::int64_t k, std::int64_t n);
std::int64_t packed_panel_columns(Isa isa);  // columns of one panel
void pack_matrix(Isa isa, bool transpose_b, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, void* packed);
/// C[m, column_begin ... column_end) of the product with packed B, by the calling thread alone; column_begin is a multiple of
/// packed_panel_columns. `c` points at column 0. Packs A into 64 KiB of the stack: it neither allocates nor throws, so that threads
/// which wait for one another may call it.
void gemm_packed(Isa isa, std::int64_t m, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda, const void* packed,
                 std::int64_t column_begin, std::int64_t column_end, float* c, std::int64_t ldc, bool accumulate) noexcept;

}  // namespace everglow
