// The blocked rows of each layer on a CPU, in src/cpu; their inner loops are compiled once for each instruction set.
#pragma once

#include "core/rows.hpp"

namespace everglow::cpu {

extern const LinearRow linear_onednn;
extern const LinearRow linear;
extern const RecurrentRow recurrent_stepwise;
extern const AttentionRow attention_flash2;
extern const SoftmaxRow softmax_online;
extern const EmbeddingRow embedding;
extern const LossRow loss;
extern const PointwiseRow pointwise;
extern const AdamRow adam;

}  // namespace everglow::cpu
