// The rows of kernels for compute capability 8.0 and newer.
#pragma once

#include "core/rows.hpp"

namespace everglow::cuda {

extern const AttentionRow attention_flash1, attention_flash2;

}  // namespace everglow::cuda
