// The launches of the FlashAttention-2 kernels: one source each for a storage type, a direction and a variant, so that builds run
// in parallel and the host half compiles without the kernels.
#pragma once

#include "cuda/common/attention_params.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace everglow::cuda {

struct FlashForwardGrid;
struct FlashBackwardGrid;
struct FlashBiasGrid;

/// Head columns of the kernel that serves dimensions of up to `widest`: 64, 128 or 256.
inline int flash_columns(int64_t widest) { return widest <= 64 ? 64 : widest <= 128 ? 128 : 256; }

/// T is __half or __nv_bfloat16.
template <class T, bool general>
void launch_flash2_forward(const AttentionParams& p, const FlashForwardGrid& grid, int columns, cudaStream_t stream);
template <class T, bool general>
void launch_flash2_backward(const AttentionParams& p, const FlashBackwardGrid& grid, int columns, cudaStream_t stream);
template <class T>
void launch_flash2_bias(const AttentionParams& p, const FlashBackwardGrid& grid, const FlashBiasGrid& bias, int columns,
                        cudaStream_t stream);

}  // namespace everglow::cuda
