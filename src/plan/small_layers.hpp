// Layers that are bound by memory alone, and the classifier with its loss.
#pragma once

#include <everglow/loss.hpp>

#include "plan/gemm.hpp"

namespace everglow::plan {

/// A layer that moves so many bytes once.
void explain_stream(double bytes, const Machine& machine, Explanation& out);

/// The products of a linear layer inputs -> classes and the passes over its logits.
void explain_loss(const LossDescription& description, std::int64_t rows, const Machine& machine, Explanation& out);

}  // namespace everglow::plan
