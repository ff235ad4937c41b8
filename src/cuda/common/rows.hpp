// The CUDA rows. src/ops/cuda/rows.cpp puts them in order.
#pragma once

#include "core/rows.hpp"

namespace everglow::cuda {}  // namespace everglow::cuda
