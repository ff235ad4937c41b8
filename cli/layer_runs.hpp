// Layers as something that can be timed: each pass as a call of its own.
#pragma once

#include "cli/operands.hpp"

#include <everglow/everglow.hpp>

#include <functional>
#include <string>
#include <vector>

namespace everglow::cli {

/// One pass, named as in Explanation::passes. `run` takes the number of a turn.
struct PassRun {
  std::string name;
  std::function<void(std::int64_t turn)> run;
};

/// forward, activation_gradient and weight_gradient (with the bias's); where an activation stands before both gradients, these are
/// one call, "backward". The memory must live as long as the runs.
std::vector<PassRun> linear_runs(OperandMemory& memory, const LinearDescription& description, const LinearSizes& sizes,
                                 const PlanOptions& options);
/// forward and backward; what forward keeps is made here once.
std::vector<PassRun> recurrent_runs(OperandMemory& memory, const RecurrentDescription& description, const RecurrentSizes& sizes,
                                    const PlanOptions& options);
std::vector<PassRun> attention_runs(OperandMemory& memory, const AttentionDescription& description, const AttentionSizes& sizes,
                                    const PlanOptions& options);

}  // namespace everglow::cli
