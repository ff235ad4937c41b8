// The CUDA rows. src/ops/cuda/rows.cpp puts them in order.
#pragma once

#include "core/rows.hpp"

namespace everglow::cuda {

extern const LinearRow linear_cublaslt, linear;
extern const RecurrentRow recurrent_stepwise;
extern const SoftmaxRow softmax_online;
extern const PointwiseRow pointwise;

}  // namespace everglow::cuda
