// Kernels over the rows of a matrix: a block takes some rows at a time, with threads side by side along each; and sums over a
// block.
#pragma once

#include "cuda/common/pack.cuh"

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

/// Rows of bits, not numbers: row r of `to` is row source(r) of `from`, or zeros where that is negative. In units of up to 16
/// bytes.
template <class Source>
struct GatherParams {
  Source source;
  Plane from, to;
  std::int64_t rows, columns;
};

template <class Unit, class Source>
__global__ void __launch_bounds__(row_block_threads) gather_kernel(const __grid_constant__ GatherParams<Source> p) {
  for (std::int64_t row = first_row(); row < p.rows; row += rows_at_once()) {
    const std::int64_t source = p.source(row);
    const Unit* const from = static_cast<const Unit*>(p.from.data) + source * p.from.stride;
    Unit* const to = static_cast<Unit*>(const_cast<void*>(p.to.data)) + row * p.to.stride;
    for (std::int64_t column = threadIdx.x; column < p.columns; column += blockDim.x)
      to[column] = source < 0 ? Unit{} : from[column];
  }
}

/// True where rows are whole units on both sides, and the copy is under way. `size` is that of an element.
template <class Unit, class Source>
bool gather_units(GatherParams<Source> p, std::int64_t size, cudaStream_t stream) {
  constexpr auto unit = static_cast<std::int64_t>(sizeof(Unit));
  const auto fits = [&](const Plane& plane) {
    return reinterpret_cast<std::uintptr_t>(plane.data) % sizeof(Unit) == 0 && plane.stride * size % unit == 0;
  };
  if (unit < size || p.columns * size % unit != 0 || !fits(p.from) || !fits(p.to)) return false;
  p.columns = p.columns * size / unit;
  p.from.stride = p.from.stride * size / unit, p.to.stride = p.to.stride * size / unit;
  const RowBlocks shape(p.rows, p.columns);
  gather_kernel<Unit><<<shape.grid, shape.block, 0, stream>>>(p);
  return true;
}

/// Planes in elements of `size` bytes, 2 or 4, which lie side by side.
template <class Source>
void gather_rows(const GatherParams<Source>& p, std::int64_t size, cudaStream_t stream) {
  if (p.rows == 0 || p.columns == 0) return;
  if (gather_units<uint4>(p, size, stream) || gather_units<uint2>(p, size, stream) || gather_units<std::uint32_t>(p, size, stream))
    return;
  gather_units<std::uint16_t>(p, size, stream);
}

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
