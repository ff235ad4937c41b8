// How a product C[m, n] = A[m, k] B[k, n] is brought to a library that is several times slower where rows, or sizes along rows, are
// no multiples of 16 bytes: which matrices are copied to rows that are, and which narrow rest is left beside the product.
#pragma once

#include "plan/gemm.hpp"

namespace everglow::plan {

struct OddOperand {
  std::int64_t alignment = 128;  // bytes, of the first element and the rows
  bool filled = false;           // a copy already, with zeros past its rows up to a whole size
  bool may_stage = false;        // there is room for a copy
  bool aligned() const { return alignment >= 16; }
};

struct OddProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool a_along_k = true, b_along_n = true;  // else along m, along k; C lies along n
  std::int64_t c_element = 2;               // bytes
  OddOperand a{}, b{}, c{};
  bool may_widen = false;   // there is room for C in f32
  bool accumulate = false;  // C += A B
  bool leaves_rows = true;  // a rest of m may be left
};

/// The library multiplies sizes m, n, k. Where they are larger than the product's, both operands are copies with zeros in them (or,
/// for m and n, whatever: those rows and columns of C are not read); where smaller, a rest is left: of m, rows; of n, columns; of
/// k, a few terms of each element, which are added to the f32 result before it is rounded.
struct OddScheme {
  std::int64_t m = 0, n = 0, k = 0;
  bool stage_a = false, stage_b = false, stage_c = false, widen = false;
  bool as_is = true;  // the product on what is given
  double time_us = 0;
};

/// Elements of 16 bytes.
inline std::int64_t unit_of(std::int64_t element) { return 16 / element; }

/// The scheme of least predicted time. Without tensor cores, and where everything is whole, that of what is given, at no cost.
OddScheme choose_odd(const Machine& machine, const OddProduct& product);

}  // namespace everglow::plan
