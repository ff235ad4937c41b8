// The kernel table of each layer and device kind. Each stands in src/ops/<layer>/table.cpp.
#pragma once

#include "core/rows.hpp"

#include <span>

namespace everglow {

std::span<const LinearRow* const> linear_table(DeviceKind kind);
std::span<const RecurrentRow* const> recurrent_table(DeviceKind kind);
std::span<const AttentionRow* const> attention_table(DeviceKind kind);
std::span<const SoftmaxRow* const> softmax_table(DeviceKind kind);
std::span<const EmbeddingRow* const> embedding_table(DeviceKind kind);
std::span<const LossRow* const> loss_table(DeviceKind kind);
std::span<const PointwiseRow* const> pointwise_table(DeviceKind kind);
std::span<const AdamRow* const> adam_table(DeviceKind kind);

}  // namespace everglow
