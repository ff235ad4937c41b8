// What the micro-kernel of each instruction set offers to the drivers in packed.cpp. Plain structs and function pointers only: the
// sources in isa/ include this header.
//
// Packed A: f32, panels of at most `rows` rows, as even as possible, one after the other, each [k, rows of the panel]. Packed B:
// panels of `panel_columns` columns, each [k, panel_columns], the last filled up with zeros.
#pragma once

#include "core/stored.hpp"

#include <cstddef>
#include <cstdint>

namespace everglow {

/// C[m, n] = packed A · packed B (+ bias) (+ C). Every element of C is one chain of multiply-adds over k in order, that begins with
/// C or bias: cutting k into several calls, or m and n in any way, gives the same bits.
struct PackedProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  const void* b = nullptr;
  Element b_element = Element::f32;
  std::int64_t panel_stride = 0;  // elements between panels of B
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* bias = nullptr;  // [n]
  bool load_c = false;
};

struct GemmKernels {
  int rows;           // of the largest tile
  int panel_columns;  // of a panel of B
  int slack;          // floats behind packed A that pack_a may overwrite
  void (*pack_a)(bool transpose, const Stored& a, std::int64_t m, std::int64_t k, float* packed);
  /// Packs into f32, or 16 bits as they are.
  void (*pack_b)(bool transpose, const Stored& b, std::int64_t k, std::int64_t n, const StoredOut& packed);  // stride of panels
  void (*multiply)(const PackedProduct& product);
  void (*convert)(std::int64_t rows, std::int64_t columns, const Stored& from, const StoredOut& to);
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
