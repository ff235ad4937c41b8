// The LSTM cell of one row of the batch, vectorised. Gates stand in blocks of 16 units: i, f, g, o of units 0-15, then of 16-31, so
// that a block of the recurrent product holds all gates of its units and every instruction set's vectors divide it.
#pragma once

#include <cstdint>

namespace everglow {

inline constexpr std::int64_t lstm_block = 16;  // units

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

struct LstmKernels {
  void (*forward)(const LstmForwardRow&) = nullptr;
  void (*backward)(const LstmBackwardRow&) = nullptr;
  /// sums[j] = the sum over rows of a[row, j], j in [begin, end), both multiples of lstm_block.
  void (*column_sums)(const float* a, std::int64_t rows, std::int64_t stride, std::int64_t begin, std::int64_t end,
                      float* sums) = nullptr;
};

namespace portable {
extern const LstmKernels lstm_kernels;
}
namespace avx2 {
extern const LstmKernels lstm_kernels;
}
namespace avx512 {
extern const LstmKernels lstm_kernels;
}

}  // namespace everglow
