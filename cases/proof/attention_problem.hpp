// The tensors of one attention case, its run on a row, and derived bounds on the errors of that run.
#pragma once

#include "cases/case.hpp"
#include "cases/proof/tensor.hpp"

#include <everglow/attention.hpp>

#include <string>
#include <vector>

namespace everglow::proof {

using Values = std::vector<double>;

AttentionDescription attention_description(const cases::Case& c);
AttentionSizes attention_sizes(const cases::Case& c);

/// Inputs in logical order with padding, rounded to the description's dtype. Rows past a length are NaN; a packed run leaves them
/// out.
struct AttentionInputs {
  Values q, k, v, d_o, dlse, bias, slopes, query_lengths, key_lengths;
  std::int64_t bias_rows = 0, bias_heads = 0;  // bias [bias_rows, bias_heads, Sq, Sk]
  std::int64_t slope_rows = 0;                 // slopes [slope_rows, Hq], or [Hq] where 0
  std::uint64_t seed = 11, offset = 5;
};
AttentionInputs attention_inputs(const AttentionDescription& d, const AttentionSizes& s, const cases::Case& c);

/// The same layer on a padded batch with lengths, where the description is of a packed one.
AttentionDescription padded(AttentionDescription d);
AttentionSizes padded(AttentionSizes s);

/// In the layout of the padded batch: what a packed run leaves out is 0, and -inf in lse.
struct AttentionResults {
  Values o, lse, dq, dk, dv, dbias;
  bool guards_intact = true;
};

struct AttentionRun {
  PlanOptions options{};
  DeviceDescription device = Device::cpu();
  bool steps_first = false;  // memory is [S, B, H, D] with gaps between rows, a bias [.., Sk, Sq]; the views are permuted
  bool backward = true;
  const AttentionPlan* plan = nullptr;  // null: one is made
};
/// Runs with poisoned outputs and a workspace of exactly the bytes asked for.
AttentionResults run_attention(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in,
                               const AttentionRun& run);

/// The reference in f64; for packed batches on the padded one, so that the two forms prove each other.
AttentionResults exact_attention(AttentionDescription d, const AttentionSizes& s, const AttentionInputs& in);

/// What probabilities and score gradients are where a row multiplies them: f32, or the storage type, as matrix instructions want
/// it.
enum class Operands { f32, stored };

/// Bounds on |f32 (or 16-bit) run - f64 run|, element by element, in the shape of the results. See the comments inside.
AttentionResults attention_bounds(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in,
                                  const AttentionResults& exact, Operands operands = Operands::f32);

}  // namespace everglow::proof
