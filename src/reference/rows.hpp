// The reference rows: every layer in plain loops with double accumulation. Each accepts every description of its layer.
#pragma once

#include "core/rows.hpp"

namespace everglow::reference {

extern const LinearRow linear;
extern const RecurrentRow recurrent;
extern const AttentionRow attention;
extern const SoftmaxRow softmax;
extern const EmbeddingRow embedding;
extern const LossRow loss;
extern const PointwiseRow pointwise;
extern const AdamRow adam;

}  // namespace everglow::reference
