// The CUDA rows. src/ops/cuda/rows.cpp puts them in order.
#pragma once

#include "core/rows.hpp"

namespace everglow::cuda {

extern const LinearRow linear_cublaslt, linear;
extern const SoftmaxRow softmax_online;
extern const PointwiseRow pointwise;
extern const AttentionRow attention_standard;

}  // namespace everglow::cuda
