// Where the threads that make a row of softmax meet: the warps of a block, then the blocks of a cluster, leave their parts of the
// sums and every thread has the whole.
#pragma once

#include "cuda/common/softmax_parts.cuh"

#include <cooperative_groups.h>
#include <cuda/ptx>

namespace everglow::cuda {

constexpr int most_cluster = 16;

/// For two rows in turn: one meeting a row is then enough, since nobody is a whole row behind another.
struct RowMeeting {
  SoftmaxPart of_warps[2][32];
  alignas(8) SoftmaxPart of_blocks[2][most_cluster];
  std::uint64_t arrived[2];  // barriers that count bytes
};

/// The blocks of a cluster write into each other's memory without waiting; a barrier there counts what has come. A block ends when
/// it has what the others sent last, so that none writes to one that has ended.
struct Cluster {
#if __CUDA_ARCH__ >= 900
  /// Before the first meeting: no block may write to one that has not begun.
  static __device__ void begin(RowMeeting& meeting) {
    if (threadIdx.x == 0) {
      for (std::uint64_t& barrier : meeting.arrived) ::cuda::ptx::mbarrier_init(&barrier, 1);
      ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
    }
    ::cuda::ptx::barrier_cluster_arrive(::cuda::ptx::sem_relaxed);  // or every store before it would be waited for
    ::cuda::ptx::barrier_cluster_wait();
  }
  static __device__ unsigned rank() { return cooperative_groups::this_cluster().block_rank(); }
  /// `turn` counts rows.
  static __device__ void exchange(const SoftmaxPart& part, RowMeeting& meeting, unsigned turn, int blocks) {
    using namespace ::cuda::ptx;
    const auto cluster = cooperative_groups::this_cluster();
    std::uint64_t* const arrived = &meeting.arrived[turn % 2];
    if (threadIdx.x == 0)
      mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, arrived,
                                static_cast<unsigned>(blocks) * static_cast<unsigned>(sizeof part));
    if (threadIdx.x < static_cast<unsigned>(blocks)) {
      SoftmaxPart* const to = &meeting.of_blocks[turn % 2][cluster.block_rank()];
      st_async(reinterpret_cast<std::uint64_t*>(cluster.map_shared_rank(to, threadIdx.x)),
               static_cast<std::uint64_t>(__float_as_uint(part.sum)) << 32 | __float_as_uint(part.top),
               cluster.map_shared_rank(arrived, threadIdx.x));
    }
    while (!mbarrier_try_wait_parity(sem_acquire, scope_cluster, arrived, turn / 2 % 2)) continue;
  }
#else
  static __device__ void begin(RowMeeting&) {}
  static __device__ unsigned rank() { return 0; }
  static __device__ void exchange(const SoftmaxPart&, RowMeeting&, unsigned, int) {}
#endif
};

/// Joins what lanes hold, in every lane, in an order that their number fixes.
template <bool backward>
__device__ inline SoftmaxPart join_lanes(const SoftmaxPart& part) {
  if constexpr (backward) return {0, join_sum(part.sum)};
  const float top = join_max(part.top);
  return {top, join_sum(part.sum * expf(part.top - below(top)))};
}

/// Of a whole row, from the part of each warp of each of `blocks` blocks; `turn` counts rows.
template <bool backward>
__device__ inline SoftmaxPart join_row(const SoftmaxPart& part, RowMeeting& meeting, unsigned turn, int blocks) {
  const SoftmaxPart nothing{negative_infinity(), 0};
  const unsigned lane = threadIdx.x % 32;
  SoftmaxPart* const of_warps = meeting.of_warps[turn % 2];
  if (lane == 0) of_warps[threadIdx.x / 32] = part;
  __syncthreads();
  const SoftmaxPart of_block = join_lanes<backward>(lane < blockDim.x / 32 ? of_warps[lane] : nothing);
  if (blocks == 1) return of_block;
  Cluster::exchange(of_block, meeting, turn, blocks);
  return join_lanes<backward>(lane < static_cast<unsigned>(blocks) ? meeting.of_blocks[turn % 2][lane] : nothing);
}

}  // namespace everglow::cuda
