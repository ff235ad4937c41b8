// What the micro-kernel of each instruction set offers to the drivers in packed.cpp. Plain structs and function pointers only: the
// sources in isa/ include this header.
//
// Packed A: f32, panels of at most `rows` rows, as even as possible, one after the other, each [k, rows of the panel]. Packed B:
// panels of `panel_columns` columns, each [k, panel_columns], the last filled up with zeros. Words of pairs: see GemmKernels.
#pragma once

#include "core/stored.hpp"

#include <cstddef>
#include <cstdint>

namespace everglow {

/// C[m, n] = packed A · packed B (+ bias) (+ C). Every element of C is one chain of multiply-adds over k in order, that begins with
/// C or bias: cutting k into several calls, or m and n in any way, gives the same bits. Words are multiplied as words, in order
/// too: with them k is cut at even numbers.
struct PackedProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  bool words = false;  // A is packed in words, as B must be
  const void* b = nullptr;
  Element b_element = Element::f32;
  std::int64_t panel_stride = 0;  // elements between panels of B; even where it is packed in words
  float* c = nullptr;
  std::int64_t ldc = 0;
  const float* bias = nullptr;  // [n]
  bool load_c = false;
};

/// Where an instruction set multiplies pairs of bf16, B in bf16 is packed in words of two consecutive k, the first in the lower
/// half, each panel [(k + 1) / 2, panel_columns]; A as well where it is bf16 too. The word of an odd k ends in zero in both.
struct GemmKernels {
  int rows;           // of the largest tile
  int panel_columns;  // of a panel of B
  int slack;          // floats behind packed A that pack_a may overwrite
  void (*pack_a)(bool transpose, const Stored& a, std::int64_t m, std::int64_t k, float* packed);
  /// A of bf16, or in f32 of no more bits than that and stored [m, k], into words. Null where none are multiplied.
  void (*pack_words)(bool transpose, const Stored& a, std::int64_t m, std::int64_t k, float* packed);
  /// Packs into f32, or 16 bits as they are (bf16 in words where they are multiplied).
  void (*pack_b)(bool transpose, const Stored& b, std::int64_t k, std::int64_t n, const StoredOut& packed);  // stride of panels
  void (*multiply)(const PackedProduct& product);
  void (*convert)(std::int64_t rows, std::int64_t columns, const Stored& from, const StoredOut& to);
  bool words() const { return pack_words != nullptr; }  // pairs of bf16 are multiplied
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
namespace avx512_bf16 {
extern const GemmKernels gemm_kernels;
}

}  // namespace everglow
