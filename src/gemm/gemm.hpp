// Matrix products on a CPU, row-major: C[m, n] = A[m, k] · B[k, n] (+ bias[n]) (+ C). Operands are f32, f16 or bf16 each; sums are
// f32, and C in 16 bits is rounded once, from the complete sum. The one place that knows GEMM libraries: oneDNN where it may serve,
// else our own packed micro-kernel, whose order over k does not depend on threads, m or n. It widens 16 bits to f32 where it packs
// or reads them; with avx512_bf16 two operands of bf16 are multiplied in pairs of k as they are: subnormal operands and sums then
// count as zero.
#pragma once

#include <everglow/tensor.hpp>

#include "core/isa.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace everglow {

/// A part of C whose sums are complete: elements `stride` apart from row to row, in C itself or in scratch memory of the thread.
struct GemmBlock {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
  const void* values = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
};

/// The order of everglow::Activation.
enum class GemmActivation : std::uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

/// Called for each block of C when it is complete, by the thread that made it, while it is in cache.
struct GemmFinish {
  void (*run)(const void* context, const GemmBlock& block) = nullptr;
  const void* context = nullptr;
  bool replaces = false;                             // it writes what is wanted over C, so that the sums need not be stored there
  GemmActivation activation = GemmActivation::none;  // which it writes over C: a library that has it need not call
};

struct Gemm {
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;  // elements between stored rows
  const void* b = nullptr;
  std::int64_t ldb = 0;
  void* c = nullptr;
  std::int64_t ldc = 0;
  const void* bias = nullptr;  // [n]
  bool accumulate = false;     // add to C
  GemmFinish finish{};
  bool packed_b =
      false;  // b is what pack_matrix made, for the same k and n and of b_type; transpose_b, ldb and step_b do not count
  DType a_type = DType::f32, b_type = DType::f32, c_type = DType::f32, bias_type = DType::f32;
  std::int64_t step_a = 1, step_b = 1, step_c = 1, step_bias = 1;  // elements between stored columns
};

struct GemmContext {
  int threads = 1;
  Isa isa = Isa::portable;
  bool library = true;    // oneDNN may serve; false: our micro-kernel, the same bits for any thread count, m and n
  bool prepares = false;  // makes what a library keeps for products of this form; no element is read or written
};

bool has_onednn();
/// Whether our micro-kernel multiplies two operands of bf16 as they are.
bool multiplies_bf16(Isa isa);
/// How it multiplies operands of a type, for explanations; empty for f32.
std::string_view how_multiplied(Isa isa, DType dtype);
/// Whether oneDNN has products of this type for this CPU that are not its reference implementation.
bool onednn_multiplies(DType dtype);
/// m, n or k may be 0: k = 0 writes bias or zeros (or leaves C when accumulating). What it needs beside C is not part of a
/// workspace: each thread keeps at most 3 MiB to pack into until it ends, whatever the sizes, and the calling thread oneDNN's
/// scratchpad of at most 64 MiB (a product that asks for more goes to our micro-kernel). Throws Error(out_of_memory) where these
/// cannot be had.
void gemm(const Gemm& product, const GemmContext& context);

/// B packed once for many products, in its own type: panels of columns, each k long.
std::size_t packed_matrix_bytes(Isa isa, std::int64_t k, std::int64_t n, DType dtype = DType::f32);
std::int64_t packed_panel_columns(Isa isa);  // columns of one panel
struct MatrixToPack {
  bool transpose = false;  // stored [n, k]
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0, step = 1;
  std::int64_t k = 0, n = 0;
};
void pack_matrix(Isa isa, const MatrixToPack& b, void* packed);
inline void pack_matrix(Isa isa, bool transpose_b, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, void* packed) {
  pack_matrix(isa, {.transpose = transpose_b, .data = b, .stride = ldb, .k = k, .n = n}, packed);
}

/// C[m, column_begin ... column_end) of a product with packed B, in f32; column_begin is a multiple of packed_panel_columns. `c`
/// points at column 0.
struct PackedGemm {
  std::int64_t m = 0, k = 0, n = 0;
  const void* a = nullptr;
  DType a_type = DType::f32;
  bool a_is_bf16 = false;  // every element of an A of f32 was rounded to bf16
  std::int64_t lda = 0;
  const void* packed = nullptr;
  DType packed_type = DType::f32;
  std::int64_t column_begin = 0, column_end = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
};
/// By the calling thread alone, as the recurrent loop does. Packs A into 64 KiB of the stack: it neither allocates nor throws, so
/// that threads which wait for one another may call it.
void gemm_packed(Isa isa, const PackedGemm& product) noexcept;
inline void gemm_packed(Isa isa, std::int64_t m, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda,
                        const void* packed, std::int64_t column_begin, std::int64_t column_end, float* c, std::int64_t ldc,
                        bool accumulate) noexcept {
  gemm_packed(isa, {.m = m,
                    .k = k,
                    .n = n,
                    .a = a,
                    .lda = lda,
                    .packed = packed,
                    .column_begin = column_begin,
                    .column_end = column_end,
                    .c = c,
                    .ldc = ldc,
                    .accumulate = accumulate});
}

}  // namespace everglow
