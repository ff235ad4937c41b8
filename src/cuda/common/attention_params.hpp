// What the attention kernels get: the tensors of one run as pointers and strides, and the options as numbers. Filled on the host by
// attention_params(); packed batches have the batch stride 0 and the first row of each sequence in cu_queries and cu_keys.
#pragma once

#include <cstdint>

namespace everglow::cuda {

/// A [B, S, H, D] tensor; null where it is not given.
struct AttentionTensor {
  void* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;  // strides in elements; the last one is 1
  bool aligned = true;                   // every row begins at a multiple of 16 bytes
};
/// An f32 [B, H, S] tensor; null where it is not given.
struct AttentionStatistic {
  float* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};
/// i32 values; null where they are not given.
struct AttentionLengths {
  const int32_t* data = nullptr;
  int64_t stride = 0;
};
/// A [1|B, 1|Hq, Sq, Sk] tensor; the stride of what is broadcast is 0.
struct AttentionBias {
  void* data = nullptr;
  int64_t batch = 0, head = 0, query = 0, key = 0;
};

struct AttentionParams {
  AttentionTensor q, k, v, o, d_o, dq, dk, dv;
  AttentionStatistic lse, dlse;
  AttentionLengths query_lengths, key_lengths, cu_queries, cu_keys;
  AttentionBias bias, dbias;
  const float* slopes = nullptr;  // ALiBi
  int64_t slopes_batch = 0, slopes_head = 0;
  uint32_t* status = nullptr;

  int batch = 0, heads = 0, kv_heads = 0, group = 1;  // group: query heads that share a key head
  int queries = 0, keys = 0;                          // of a sequence, at most: what a bias and dropout count in
  int head_dim = 0, value_dim = 0;
  int total_queries = 0, total_keys = 0;  // rows of a packed batch
  int left = 0, right = 0;                // keys that a query sees beside its diagonal; unlimited: no_limit
  int top_left = 0;
  bool general = false;  // which variant of a kernel runs
  float scale = 1, softcap = 0;
  uint32_t dropout_threshold = 0;
  float kept = 1;  // 1 / (1 - dropout)
  int drops = 0;
  uint64_t seed = 0, offset = 0;
  const int64_t* dropout_state = nullptr;  // seed and offset on the device
  int64_t dropout_state_stride = 0;
};

inline constexpr int no_limit = 1 << 30;

}  // namespace everglow::cuda
