// The fully-connected layer: its three products, and the smallest changes of its sizes that pay.
#pragma once

#include <everglow/linear.hpp>

#include "plan/gemm.hpp"

#include <vector>

namespace everglow::plan {

/// Elements from row to row where they are not dense; 0: dense.
struct LinearStrides {
  std::int64_t inputs = 0, outputs = 0;
};

/// Forward, and with `training` both gradients. A transposed storage of W changes the flags, and m and n of the weight gradient.
std::vector<ExplanationGemm> linear_gemms(const LinearDescription& description, std::int64_t batch, const Machine& machine,
                                          const LinearStrides& strides = {});

/// For each dimension at most one change of the size and one of the stride, best first: the smallest that reaches 95 % of the best
/// gain. A batch is never filled up with rows that nobody uses: its change is of the batch itself, its gain is per row.
std::vector<ExplanationAdvice> linear_advice(const LinearDescription& description, std::int64_t batch, const Machine& machine);

/// Fills gemms, advice, time and floor.
void explain_linear(const LinearDescription& description, std::int64_t batch, const Machine& machine, Explanation& out);

}  // namespace everglow::plan
