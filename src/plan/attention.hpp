// Attention: arithmetic, the memory that each algorithm moves, its tiles, blocks and waves, and where keys are split.
#pragma once

#include <everglow/attention.hpp>

#include "plan/gemm.hpp"

#include <vector>

namespace everglow::plan {

/// Products of one batch and head, as often as there are; the gradients compute the scores again.
std::vector<ExplanationGemm> attention_gemms(const AttentionDescription& description, const AttentionSizes& sizes,
                                             const Machine& machine);
/// Forward: 2 B Hq (D + Dv) times the scores that no mask hides.
double attention_flops(const AttentionDescription& description, const AttentionSizes& sizes);
/// standard, flash1, flash2, and on sm_90 warp_specialised.
std::vector<ExplanationAlgorithm> attention_algorithms(const AttentionDescription& description, const AttentionSizes& sizes,
                                                       const DeviceFigures& figures, const Machine& machine);
void explain_attention(const AttentionDescription& description, const AttentionSizes& sizes, const DeviceFigures& figures,
                       const Machine& machine, Explanation& out);

}  // namespace everglow::plan
