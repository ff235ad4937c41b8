// The CUDA backend as the tables see it: built (rows.cpp lists the rows of each layer, in order of preference) or not (absent.cpp
// gives one declining row each).
#pragma once

#include "core/rows.hpp"

#include <span>

namespace everglow::cuda {

std::span<const LinearRow* const> linear_rows();
std::span<const RecurrentRow* const> recurrent_rows();
std::span<const AttentionRow* const> attention_rows();
std::span<const SoftmaxRow* const> softmax_rows();
std::span<const EmbeddingRow* const> embedding_rows();
std::span<const LossRow* const> loss_rows();
std::span<const PointwiseRow* const> pointwise_rows();
std::span<const AdamRow* const> adam_rows();

}  // namespace everglow::cuda
