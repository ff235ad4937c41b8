// The sizes of an attention layer as its formulas read them.
#pragma once

#include <everglow/attention.hpp>

#include "plan/gemm.hpp"

namespace everglow::plan {

/// Sizes with the defaults filled in.
struct Shape {
  double B, Sq, Sk, Hq, Hk, D, Dv, element;
  double scores;  // of one head that no mask hides
};
Shape shape_of(const AttentionDescription& description, const AttentionSizes& sizes, std::int64_t element);

inline double queries_bytes(const Shape& s) { return s.element * s.B * s.Hq * s.Sq * s.D; }
inline double output_bytes(const Shape& s) { return s.element * s.B * s.Hq * s.Sq * s.Dv; }
inline double keys_values_bytes(const Shape& s) { return s.element * s.B * s.Hk * s.Sk * (s.D + s.Dv); }

/// The row of a CPU: FlashAttention-2's order of loops, with tiles of scores in a core's caches.
ExplanationAlgorithm attention_on_cpu(const AttentionDescription& description, const Shape& shape, const Machine& machine,
                                      double flops);

/// What a thread does for one pass of cpu.attention_flash2, in the units of AttentionCosts.
struct AttentionWork {
  enum class Way { blocks, small_heads, few_queries } way = Way::blocks;
  double multiplications = 0, scores = 0, moved = 0, blocks = 0;
  double tasks = 0;  // that threads share
};
AttentionWork attention_work(const AttentionDescription& description, const Shape& shape, const Machine& machine, bool backward);

}  // namespace everglow::plan
