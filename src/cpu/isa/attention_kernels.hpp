// The blocks of FlashAttention-2 on a CPU: one (batch, head) and up to `block_queries` queries at a time. Plain structs only.
#pragma once

#include <cstdint>

namespace everglow {

/// Rows of one (batch, head): `data` is row 0, rows lie `stride` elements apart.
struct FlashRows {
  const float* data;
  std::int64_t stride;
};
struct FlashOutput {
  float* data;
  std::int64_t stride;
};

/// What every block has: its queries, its head dimensions, the keys that some query sees, and those that each sees.
struct FlashShape {
  std::int64_t head_dim, value_dim;
  std::int64_t queries;             // 1 ... block_queries
  std::int64_t key_begin, key_end;  // union over the queries; empty: begin >= end
  const std::int32_t* first_key;    // [queries]: keys [first_key, end_key) of each query
  const std::int32_t* end_key;
  float scale;
};

/// Scratch of one thread. M = block_queries, N = block_keys; "transposed" is [.., M]: queries side by side in vectors.
struct FlashScratch {
  float* q;       // [D, M], scaled
  float* d_o;     // [Dv, M]
  float* p;       // [N, M]; one query at a time: [Sk]
  float* ds;      // [N, M]
  float* o;       // [Dv, M]
  float* dq;      // [D, M]
  float* q_rows;  // [M, D rounded up to whole vectors]: used where D is not whole vectors
  float* d_o_rows;  // [M, Dv rounded up]
};

struct FlashForwardBlock {
  FlashShape shape;
  FlashRows q, k, v;  // q from the block's first query; k and v from key 0
  FlashOutput o;
  float* lse;  // null: not wanted
  std::int64_t lse_stride;
  FlashScratch scratch;
};

struct FlashBackwardBlock {
  FlashShape shape;
  FlashRows q, k, v, o, d_o;  // d_o.data null: zero
  FlashRows lse, dlse;        // one element a row; dlse.data null: zero
  FlashOutput dq;             // null: not wanted
  FlashOutput dk, dv;         // [.., D or Dv rounded up to whole vectors], added to, from key `key_origin`; null: not wanted
  std::int64_t key_origin;
  FlashScratch scratch;
};

struct AttentionForwardKernels {
  int lanes;
  int block_queries;
  int block_keys;
  int row_queries;  // up to this many queries in all go one by one, with the head dimension in vectors
  void (*block)(const FlashForwardBlock&);
  void (*rows)(const FlashForwardBlock&);
};
struct AttentionBackwardKernels {
  void (*block)(const FlashBackwardBlock&);
};

namespace portable {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
}  // namespace portable
namespace avx2 {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
}  // namespace avx2
namespace avx512 {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
}  // namespace avx512

}  // namespace everglow
