// Kernels over the rows of a matrix: a block takes some rows at a time, with threads side by side along each; and sums over a
// block.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace everglow::cuda {

constexpr int row_block_threads = 256;

/// For rows of so many packs.
struct RowBlocks {
  dim3 block, grid;
  RowBlocks(std::int64_t rows, std::int64_t packs) {
    constexpr std::int64_t most_blocks = std::int64_t{1} << 30;
    unsigned x = 32;
    while (x < row_block_threads && x < packs) x *= 2;
    block = dim3(x, row_block_threads / x);
    grid = dim3(static_cast<unsigned>(std::clamp<std::int64_t>((rows + block.y - 1) / block.y, 1, most_blocks)));
  }
};

__device__ inline std::int64_t first_row() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t rows_at_once() { return static_cast<std::int64_t>(gridDim.x) * blockDim.y; }

/// The sum over a block of one dimension, whole warps and at most 1024 threads, in an order that its size fixes; in thread 0. Once
/// in a kernel for each T.
template <class T>
__device__ inline T sum_of_block(T value) {
  __shared__ T sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(~0U, value, apart);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  if (warp != 0) return 0;
  value = lane < warps ? sums[lane] : 0;
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(~0U, value, apart);
  return value;
}

}  // namespace everglow::cuda
