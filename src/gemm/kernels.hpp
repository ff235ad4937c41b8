// What the micro-kernel of each instruction set offers to the drivers in packed.cpp. Plain structs and function pointers only: the
// sources in isa/ include this header.
//
// Packed A: panels of at most `rows` rows, as even as possible, one after the other, each [k, rows of the panel]. Packed B: panels
// of `panel_columns` columns, each [k, panel_columns], the last filled up with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

/// C[m, n] = packed A · packed B (+ bias) (+ C). Every element of C is one chain of multiply-adds over k in order, that begins with
/// C or bias: cutting k into several calls, or m and n in any way, gives the same bits.
struct PackedProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  std::int64_t panel_stride = 0;  // floats between panels of B
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* bias = nullptr;  // [n]
  bool load_c = false;
};

struct GemmKernels {
  int rows;           // of the largest tile
  int panel_columns;  // of a panel of B
  int slack;          // floats behind packed A that pack_a may overwrite
  void (*pack_a)(bool transpose, const float* a, std::int64_t lda, std::int64_t m, std::int64_t k, float* packed);
  void (*pack_b)(bool transpose, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, float* packed,
                 std::int64_t panel_stride);
  void (*multiply)(const PackedProduct& product);
};

namespace portable {
extern const GemmKernels gemm_kernels;
}
namespace avx2 {
extern const GemmKernels gemm_kernels;
}
namespace avx512 {
extern const GemmKernels gemm_kernels;
}

}  // namespace everglow
