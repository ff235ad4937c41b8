// The blocks of FlashAttention-2 on a CPU: one (batch, head) and up to `block_queries` queries at a time, or several such blocks
// that share the keys. Plain structs only.
#pragma once

#include <everglow/storage.hpp>

#include <cstdint>

namespace everglow {

/// How the elements of a tensor are stored: arithmetic is f32 in any case. Values as DType's.
enum class FlashStorage : std::uint8_t { f32, f16, bf16 };

/// Rows of one (batch, head): `data` is row 0, rows lie `stride` elements apart.
struct FlashRows {
  const float* data;
  std::int64_t stride;
};
struct FlashOutput {
  float* data;
  std::int64_t stride;
};
/// The same in the storage of a tensor: read into blocks of f32 once, written with one rounding.
struct StoredRows {
  const void* data;
  std::int64_t stride;
  FlashStorage storage;
};
struct StoredOutput {
  void* data;
  std::int64_t stride;
  FlashStorage storage;
};

/// What every block has: its queries, its head dimensions, the keys that some query sees, and those that each sees.
struct FlashShape {
  std::int64_t head_dim, value_dim;
  std::int64_t queries;             // 1 ... block_queries (forward: times most_blocks)
  std::int64_t key_begin, key_end;  // union over the queries; empty: begin >= end
  const std::int32_t* first_key;    // [queries]: keys [first_key, end_key) of each query
  const std::int32_t* end_key;
  float scale;
};

/// What else is done to scores and probabilities, counted from the block's first query and from key 0.
struct FlashOptions {
  bool scores;            // softcap, a slope or a bias changes scores
  float softcap;          // 0: none
  float slope;            // ALiBi: times the distance from the diagonal
  std::int64_t diagonal;  // the key on the diagonal of the first query
  StoredRows bias;        // a row a query; data null: none
  std::int64_t bias_key;  // from key to key
  bool drops;
  std::uint32_t threshold;  // words below it are dropped
  float kept;               // what the others are multiplied by
  std::uint64_t seed, offset;
  std::uint64_t first_element, query_elements;  // of the dropout mask: (first query, key 0), and from query to query
};

/// Scratch of one thread. M = block_queries, N = block_keys, R = most_blocks on the way forward and 1 on the way back; "wide" is
/// rounded up to whole vectors and one vector more, so that rows do not fall on the same sets of a cache.
struct FlashScratch {
  float* q;         // [R, D, M], scaled, queries side by side in vectors
  float* d_o;       // [Dv, M]
  float* p;         // [N, M]; one query at a time: [Sk]
  float* ds;        // [N, M]
  float* o;         // [R, Dv, M]
  float* dq;        // [D, M]
  float* top;       // [R, M]: running maximum
  float* sum;       // [R, M]: running sum
  float* k_rows;    // [N, D wide]: rows that do not lie one after the other are gathered here
  float* v_rows;    // [N, Dv wide]
  float* q_rows;    // [M, D wide]; forward: of storage of 16 bits only
  float* d_o_rows;  // [M, Dv wide]
  float* bias;      // [N, M]: the bias, then its gradient
  float* slopes;    // [N, M]: derivative of softcap
  float* keep;      // [N, M]: factors of dropout; one query at a time: [Sk]
  float* rows;      // [M, N wide]: one of the three above before or after it is transposed
};

struct FlashForwardBlock {
  FlashShape shape;
  StoredRows q, k, v;  // q from the block's first query; k and v from key 0
  StoredOutput o;
  float* lse;  // null: not wanted
  std::int64_t lse_stride;
  float* partial;  // one query at a time, some of its keys: [queries, 2] maximum and sum, o is not divided; null: all keys
  FlashOptions options;
  FlashScratch scratch;
};

struct FlashBackwardBlock {
  FlashShape shape;
  StoredRows q, k, v, o, d_o;  // d_o.data null: zero
  FlashRows lse, dlse;         // one element a row; dlse.data null: zero
  StoredOutput dq;             // null: not wanted
  FlashOutput dk, dv;          // rows of whole vectors, added to, from key `key_origin`; null: not wanted
  std::int64_t key_origin;
  StoredOutput dbias;  // a row a query, from key `key_origin`; null: not wanted
  std::int64_t dbias_key;
  bool add_bias;  // dbias is f32 and added to
  FlashOptions options;
  FlashScratch scratch;
};

struct AttentionForwardKernels {
  int lanes;
  int block_queries;
  int block_keys;
  int most_blocks;  // blocks of queries that share each gathered block of keys
  int row_queries;  // up to this many queries in all go one by one, with the head dimension in vectors
  void (*blocks)(const FlashForwardBlock&, std::int64_t step);  // `step` queries in each block of queries
  void (*rows)(const FlashForwardBlock&);
  void (*put)(const FlashRows&, std::int64_t count, std::int64_t width, const StoredOutput&);  // the one rounding of results
};
struct AttentionBackwardKernels {
  void (*block)(const FlashBackwardBlock&);
};
/// Whole heads of up to M queries and M keys whose head dimensions are whole vectors, without options: keys lie in the lanes, so
/// that rows of q, do, o and the gradients are read and written as they lie.
struct AttentionSmallKernels {
  void (*forward)(const FlashForwardBlock&);
  void (*backward)(const FlashBackwardBlock&, bool add);  // add: dk and dv are added to, else written
};

namespace portable {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
extern const AttentionSmallKernels attention_small_kernels;
}  // namespace portable
namespace avx2 {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
extern const AttentionSmallKernels attention_small_kernels;
}  // namespace avx2
namespace avx512 {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
extern const AttentionSmallKernels attention_small_kernels;
}  // namespace avx512
namespace avx512_bf16 {
extern const AttentionForwardKernels attention_forward_kernels;
extern const AttentionBackwardKernels attention_backward_kernels;
extern const AttentionSmallKernels attention_small_kernels;
}  // namespace avx512_bf16

}  // namespace everglow
