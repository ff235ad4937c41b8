// The recurrent cells of one row of the batch, vectorised. Gates stand in blocks of 16 units: i, f, g, o (LSTM) or r, z, n (GRU) of
// units 0-15, then of 16-31, so that a block of the recurrent product holds all gates of its units and every instruction set's
// vectors divide it. Ranges are of blocks.
#pragma once

#include <cstdint>

namespace everglow {

inline constexpr std::int64_t cell_block = 16;  // units

struct LstmForwardRow {
  float* gates = nullptr;           // [blocks, 4, 16]; in: products, out: activated where kept
  const float* bias = nullptr;      // as gates
  float* c = nullptr;               // [padded H], the state, updated
  float* h = nullptr;               // [padded H]
  float* y = nullptr;               // [H]
  float* cell = nullptr;            // [padded H], a copy of c for backward; null: nothing is kept
  std::int64_t begin = 0, end = 0;  // blocks
  std::int64_t hidden = 0;
};

struct LstmBackwardRow {
  const float* gates = nullptr;     // activated
  const float* cell = nullptr;      // [padded H]
  const float* before = nullptr;    // [H], the cell state before the step; null: zero
  const float* dy = nullptr;        // [H]; null: zero
  const float* dh = nullptr;        // [H]; null: zero
  float* dc = nullptr;              // [padded H], updated
  float* dz = nullptr;              // as gates
  std::int64_t begin = 0, end = 0;  // blocks
  std::int64_t hidden = 0;
};

/// A GRU that resets after the product keeps apart what x and what h bring to a gate.
struct GruForwardRow {
  float* gates = nullptr;             // [blocks, 3, 16]; in: W x, out: activated where kept
  const float* products = nullptr;    // as gates: R h; null: zero
  const float* bias = nullptr;        // as gates; of n only that of W x
  const float* inner_bias = nullptr;  // [padded H], of R h in n
  const float* before = nullptr;      // [padded H], h before the step
  float* h = nullptr;                 // [padded H]
  float* y = nullptr;                 // [H]
  float* inner = nullptr;             // [padded H], R h + b' of n, for backward; null: nothing is kept
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

struct GruBackwardRow {
  const float* gates = nullptr;   // activated
  const float* inner = nullptr;   // [padded H]
  const float* before = nullptr;  // [H], h before the step; null: zero
  const float* dy = nullptr;      // [H]; null: zero
  const float* dh = nullptr;      // [H]; null: zero
  float* carried = nullptr;       // [padded H], what reaches h before the step past the gates; may be dh
  float* dz = nullptr;            // as gates: of W x + b
  float* du = nullptr;            // as gates: of R h + b'
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

/// A GRU that resets before the product works in two passes with a product between. Its gates stand as [blocks, 2, 16] for r and z,
/// then [padded H] for n.
struct ResetForwardRow {
  float* gates = nullptr;         // r and z; in: W x + R h, out: activated
  float* candidate = nullptr;     // n; in: W x + R (r h), out: activated
  const float* bias = nullptr;    // as gates, then as candidate
  const float* before = nullptr;  // [padded H], h before the step
  float* mixed = nullptr;         // [padded H], r h: the first pass writes it
  float* h = nullptr;             // [padded H]
  float* y = nullptr;             // [H]
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

struct ResetBackwardRow {
  const float* gates = nullptr;      // activated
  const float* candidate = nullptr;  // activated
  const float* before = nullptr;     // [H], h before the step; null: zero
  const float* dy = nullptr;         // [H]; null: zero
  const float* dh = nullptr;         // [H]; null: zero
  const float* mixed = nullptr;      // [H], the gradient of r h, which the second pass reads
  float* carried = nullptr;          // [padded H], what reaches h before the step past R of r and z; may be dh
  float* dz = nullptr;               // as gates
  float* dcandidate = nullptr;       // as candidate
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

/// tanh or relu of the sum.
struct PlainForwardRow {
  float* gates = nullptr;       // [padded H]; in: products, out: h
  const float* bias = nullptr;  // [padded H]
  float* h = nullptr;           // [padded H]
  float* y = nullptr;           // [H]
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

struct PlainBackwardRow {
  const float* gates = nullptr;  // h
  const float* dy = nullptr;     // [H]; null: zero
  const float* dh = nullptr;     // [H]; null: zero
  float* dz = nullptr;           // [padded H]
  std::int64_t begin = 0, end = 0;
  std::int64_t hidden = 0;
};

struct CellKernels {
  void (*lstm_forward)(const LstmForwardRow&) = nullptr;
  void (*lstm_backward)(const LstmBackwardRow&) = nullptr;
  /// out [H] = o tanh(c) of a step that forward kept.
  void (*lstm_output)(const float* gates, const float* cell, float* out, std::int64_t hidden) = nullptr;
  void (*gru_forward)(const GruForwardRow&) = nullptr;
  void (*gru_backward)(const GruBackwardRow&) = nullptr;
  void (*reset_gates)(const ResetForwardRow&) = nullptr;      // r, z and r h
  void (*reset_candidate)(const ResetForwardRow&) = nullptr;  // n and h
  void (*reset_candidate_backward)(const ResetBackwardRow&) = nullptr;
  void (*reset_gates_backward)(const ResetBackwardRow&) = nullptr;
  void (*tanh_forward)(const PlainForwardRow&) = nullptr;
  void (*tanh_backward)(const PlainBackwardRow&) = nullptr;
  void (*relu_forward)(const PlainForwardRow&) = nullptr;
  void (*relu_backward)(const PlainBackwardRow&) = nullptr;
  /// sums[j] = the sum over rows of a[row, j], j in [begin, end), both multiples of cell_block.
  void (*column_sums)(const float* a, std::int64_t rows, std::int64_t stride, std::int64_t begin, std::int64_t end,
                      float* sums) = nullptr;
};

namespace portable {
extern const CellKernels cell_kernels;
}
namespace avx2 {
extern const CellKernels cell_kernels;
}
namespace avx512 {
extern const CellKernels cell_kernels;
}

}  // namespace everglow
