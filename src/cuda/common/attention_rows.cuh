// The device's form of core/attention_mask.hpp: where the rows of a sequence lie, which keys a query sees, and what the options
// make of a score. Lengths out of range are clamped and noted in the status.
#pragma once

#include <everglow/plan.hpp>

#include "cuda/common/attention_params.hpp"
#include "cuda/common/storage.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace everglow::cuda {

constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

/// One sequence: its lengths, its rows in memory, and the key that stands on the diagonal of query 0.
struct AttentionSequence {
  int queries, keys;          // by the lengths
  int all_queries, all_keys;  // in memory: those past a length are padding
  int first_query, first_key;
  int diagonal;
};

__device__ inline int clamped(int value, int low, int high, uint32_t* status) {
  const int inside = min(max(value, low), high);
  if (inside != value && status != nullptr) atomicOr(status, status_lengths);
  return inside;
}
__device__ inline int length_at(const AttentionLengths& lengths, int i) { return lengths.data[i * lengths.stride]; }

__device__ inline AttentionSequence attention_sequence(const AttentionParams& p, int b) {
  AttentionSequence s{};
  if (p.cu_queries.data != nullptr) {
    s.first_query = clamped(length_at(p.cu_queries, b), 0, p.total_queries, p.status);
    s.first_key = clamped(length_at(p.cu_keys, b), 0, p.total_keys, p.status);
    const int end_query = clamped(length_at(p.cu_queries, b + 1), s.first_query, p.total_queries, p.status);
    const int end_key = clamped(length_at(p.cu_keys, b + 1), s.first_key, p.total_keys, p.status);
    s.queries = s.all_queries = clamped(end_query - s.first_query, 0, p.queries, p.status);
    s.keys = s.all_keys = clamped(end_key - s.first_key, 0, p.keys, p.status);
  } else {
    s.queries = s.all_queries = p.queries, s.keys = s.all_keys = p.keys;
    if (p.query_lengths.data != nullptr) s.queries = clamped(length_at(p.query_lengths, b), 0, p.queries, p.status);
    if (p.key_lengths.data != nullptr) s.keys = clamped(length_at(p.key_lengths, b), 0, p.keys, p.status);
  }
  s.diagonal = p.top_left ? 0 : s.keys - s.queries;
  return s;
}

/// Keys [begin, end) that query i sees. Limits and sizes are at most 2^30, so that their sums fit.
__device__ inline int end_key(const AttentionParams& p, const AttentionSequence& s, int i) {
  const int end = p.right >= no_limit ? s.keys : min(s.keys, i + s.diagonal + p.right + 1);
  return max(end, 0);
}
__device__ inline int begin_key(const AttentionParams& p, const AttentionSequence& s, int i) {
  return p.left >= no_limit ? 0 : max(0, i + s.diagonal - p.left);
}
/// Queries [begin, end) of the sequence that see any key.
__device__ inline int begin_seeing(const AttentionParams& p, const AttentionSequence& s) {
  const int begin = p.right >= no_limit ? 0 : max(0, -(s.diagonal + p.right));
  return s.keys > 0 ? min(begin, s.queries) : s.queries;
}
__device__ inline int end_seeing(const AttentionParams& p, const AttentionSequence& s) {
  const int end = p.left >= no_limit ? s.queries : min(s.queries, s.keys + p.left - s.diagonal);
  return s.keys > 0 ? max(end, 0) : s.queries;
}
/// Queries [begin, end) that see any of the keys [first, last].
__device__ inline int begin_query(const AttentionParams& p, const AttentionSequence& s, int first) {
  return p.right >= no_limit ? 0 : max(0, first - s.diagonal - p.right);
}
__device__ inline int end_query(const AttentionParams& p, const AttentionSequence& s, int last) {
  return p.left >= no_limit ? s.queries : max(0, min(s.queries, last - s.diagonal + p.left + 1));
}

/// As philox of core/philox.hpp, word i mod 4 of the counter offset + i / 4, written with high halves of products: from that
/// function nvcc 13.0 makes two of the three backward kernels spill more.
__device__ inline uint4 philox_words(uint64_t key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint4 c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high_a = __umulhi(0xD2511F53U, c.x), low_a = 0xD2511F53U * c.x;
    const uint32_t high_b = __umulhi(0xCD9E8D57U, c.z), low_b = 0xCD9E8D57U * c.z;
    c = {high_b ^ c.y ^ k0, low_b, high_a ^ c.w ^ k1, low_a};
    k0 += 0x9E3779B9U, k1 += 0xBB67AE85U;
  }
  return c;
}
__device__ inline uint32_t word_of(const uint4& words, uint32_t i) {
  const uint32_t low = (i & 1) != 0 ? words.y : words.x, high = (i & 1) != 0 ? words.w : words.z;
  return (i & 2) != 0 ? high : low;
}

/// The options of one (batch, head): what they make of scores. T is the storage type of the bias.
template <class T>
struct AttentionOptions {
  const T* bias;
  float slope;
  int diagonal;
  uint64_t seed, offset, first_element;

  __device__ AttentionOptions(const AttentionParams& p, const AttentionSequence& s, int b, int h) {
    bias = p.bias.data == nullptr ? nullptr : static_cast<const T*>(p.bias.data) + b * p.bias.batch + h * p.bias.head;
    slope = p.slopes == nullptr ? 0 : p.slopes[b * p.slopes_batch + h * p.slopes_head];
    diagonal = s.diagonal;
    seed = p.seed, offset = p.offset;
    if (p.dropout_state != nullptr) {
      seed = static_cast<uint64_t>(p.dropout_state[0]);
      offset = static_cast<uint64_t>(p.dropout_state[p.dropout_state_stride]);
    }
    first_element = (static_cast<uint64_t>(b) * p.heads + h) * static_cast<uint64_t>(p.queries) * static_cast<uint64_t>(p.keys);
  }

  /// Whether a bias of -inf hides key j from query i: not even a NaN of theirs comes through then.
  __device__ bool hides(const AttentionParams& p, int i, int j) const {
    return bias != nullptr && widen(bias[i * p.bias.query + j * p.bias.key]) == -INFINITY;
  }
  /// The score of query i and key j from q·k; `bend` is the derivative of softcap there.
  __device__ float natural_score(const AttentionParams& p, float product, int i, int j, float& bend) const {
    float s = p.scale * product;
    bend = 1;
    if (p.softcap > 0) {
      const float t = tanhf(s / p.softcap);
      s = p.softcap * t, bend = 1 - t * t;
    }
    if (bias != nullptr) s += widen(bias[i * p.bias.query + j * p.bias.key]);
    if (p.slopes != nullptr) s -= slope * static_cast<float>(abs(i + diagonal - j));
    return s;
  }
  /// The same times log2 e.
  __device__ float score(const AttentionParams& p, float product, int i, int j, float& bend) const {
    return natural_score(p, product, i, j, bend) * log2_e;
  }
  /// Whether dropout keeps the elements (i, j) and (i, j + 1); two neighbours mostly share a counter.
  __device__ void keeps_pair(const AttentionParams& p, int i, int j, bool (&keep)[2]) const {
    const uint64_t element = first_element + static_cast<uint64_t>(i) * static_cast<uint64_t>(p.keys) + static_cast<uint64_t>(j);
    uint4 words = philox_words(seed, offset + element / 4);
    keep[0] = word_of(words, element & 3) >= p.dropout_threshold;
    if ((element & 3) == 3) words = philox_words(seed, offset + element / 4 + 1);
    keep[1] = word_of(words, (element + 1) & 3) >= p.dropout_threshold;
  }
  __device__ bool keeps(const AttentionParams& p, int i, int j) const {
    const uint64_t element = first_element + static_cast<uint64_t>(i) * static_cast<uint64_t>(p.keys) + static_cast<uint64_t>(j);
    return word_of(philox_words(seed, offset + element / 4), element & 3) >= p.dropout_threshold;
  }
};

}  // namespace everglow::cuda
