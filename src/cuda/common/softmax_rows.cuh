// Softmax of rows that fit on chip: a row lies in the registers of a block, or of a cluster of blocks, while the next one is on its
// way into shared memory, so that memory never waits for arithmetic. The packs of a warp lie side by side, and a thread reads from
// shared memory only what it copied there itself, so that nothing but the sums of a row crosses threads.
#pragma once

#include "cuda/common/softmax_parts.cuh"
#include "cuda/ptx/copy.cuh"

#include <cooperative_groups.h>

namespace everglow::cuda {

constexpr int most_row_threads = 1024, most_cluster = 16;

/// Packs of a row that a thread has in registers, 64 of which serve 1024 threads of a multiprocessor. Those of two bytes, which
/// cannot be copied while others work, fill a register each.
constexpr int held_packs(int pack_bytes, int tensors) { return (pack_bytes == 2 ? 64 : 128) / pack_bytes / tensors; }

/// Parts of a row as the warps of a block, then the blocks of a cluster leave them, for two rows in turn: one barrier a row is
/// then enough, since nobody is a whole row behind another.
struct RowMeeting {
  SoftmaxPart of_warps[2][32];
  SoftmaxPart of_blocks[2][most_cluster];
};

/// Joins what lanes hold, in every lane, in an order that their number fixes.
template <bool backward>
__device__ inline SoftmaxPart join_lanes(const SoftmaxPart& part) {
  if constexpr (backward) return {0, join_sum(part.sum)};
  const float top = join_max(part.top);
  return {top, join_sum(part.sum * expf(part.top - below(top)))};
}

template <bool backward>
__device__ inline SoftmaxPart join_cluster(const SoftmaxPart& part, SoftmaxPart* shared) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned blocks = cluster.num_blocks(), lane = threadIdx.x % 32;
  if (blocks == 1) return part;
  if (threadIdx.x < blocks) *cluster.map_shared_rank(shared + cluster.block_rank(), threadIdx.x) = part;
  cluster.sync();
  return join_lanes<backward>(lane < blocks ? shared[lane] : SoftmaxPart{negative_infinity(), 0});
#else
  return part;
#endif
}

/// Of a whole row, from the part of each warp.
template <bool backward>
__device__ inline SoftmaxPart join_warps(const SoftmaxPart& part, RowMeeting& meeting, int turn) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  if (lane == 0) meeting.of_warps[turn][threadIdx.x / 32] = part;
  __syncthreads();
  const SoftmaxPart of_block =
      join_lanes<backward>(lane < warps ? meeting.of_warps[turn][lane] : SoftmaxPart{negative_infinity(), 0});
  return join_cluster<backward>(of_block, meeting.of_blocks[turn]);
}

__device__ inline std::int64_t rank_in_cluster() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().block_rank();
#else
  return 0;
#endif
}

/// A thread's share of the rows that its block makes: packs that pass through registers, and `p.resident` more that stay in shared
/// memory.
template <class T, int V, bool backward>
class RowShare {
  using Elements = Pack<T, V>;
  static constexpr int pack_bytes = V * static_cast<int>(sizeof(T)), packs = held_packs(pack_bytes, backward ? 2 : 1);
  static constexpr bool ahead = pack_bytes > 2;

 public:
  __device__ RowShare(const SoftmaxParams& p, unsigned char* memory) : p_(p) {
    const int each = packs + p.resident, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(threadIdx.x) / 32 * each * 32 + lane;
    const std::int64_t begin = rank_in_cluster() * p.segment, end = min(begin + p.segment, p.columns);
    column_ = begin + static_cast<std::int64_t>(first) * V;
    left_ = static_cast<int>(max(end - column_, static_cast<std::int64_t>(-1)));
    inside_ = left_ >= ((each - 1) * 32 + 1) * V;
    x_slots_ = memory + static_cast<std::int64_t>(first) * pack_bytes;
    d_slots_ = x_slots_ + static_cast<std::int64_t>(blockDim.x) * each * pack_bytes;
  }

  /// The first row of this block, on its way.
  __device__ void begin(std::int64_t row) const {
#pragma unroll
    for (int i = 0; i < packs; ++i) fetch(row, i), ptx::commit_copies();
    fetch_resident(row);
  }

  /// Takes row `row` into registers and sends for the packs of row `next` in their place.
  __device__ __forceinline__ SoftmaxPart take(std::int64_t row, std::int64_t next) {
    SoftmaxPart part{negative_infinity(), 0};
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      ptx::wait_for_copies<packs>();  // those of the resident packs and packs - 1 others are younger
      x_[i] = x_pack(row, i);
      if constexpr (backward) d_[i] = d_pack(row, i);
      fetch(next, i), ptx::commit_copies();
    }
    ptx::wait_for_copies<packs>();
    if constexpr (backward) {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.sum = pack_products(part.sum, x_[i], d_[i], p_.log);
      for (int i = packs; i < packs + p_.resident; ++i) part.sum = pack_products(part.sum, x_pack(row, i), d_pack(row, i), p_.log);
    } else {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.top = pack_max(part.top, x_[i]);
      for (int i = packs; i < packs + p_.resident; ++i) part.top = pack_max(part.top, x_pack(row, i));
      part.top = join_max(part.top);
      top_ = part.top;
      const float from = below(part.top);
      part.sum = sum_held(from);
      for (int i = packs; i < packs + p_.resident; ++i) part.sum = pack_sum(part.sum, x_pack(row, i), from);
    }
    return {part.top, join_sum(part.sum)};
  }

  /// Stores the results of row `row`, of which `whole` is known, and sends for the resident packs of row `next`.
  __device__ __forceinline__ void finish(std::int64_t row, std::int64_t next, const SoftmaxPart& whole) const {
    if constexpr (backward) {
#pragma unroll
      for (int i = 0; i < packs; ++i) store(row, i, gradients(x_[i], d_[i], whole.sum, p_.log));
      for (int i = packs; i < packs + p_.resident; ++i) store(row, i, gradients(x_pack(row, i), d_pack(row, i), whole.sum, p_.log));
    } else {
      const Normaliser normal(whole, p_);
      store_held(row, normal);
      for (int i = packs; i < packs + p_.resident; ++i) store(row, i, normal.results(x_pack(row, i)));
    }
    fetch_resident(next);
  }

 private:
  __device__ __forceinline__ float sum_held(float from) {
    float sum = 0;
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
#pragma unroll
        for (int i = 0; i < packs; ++i) sum = pack_exponentials(sum, x_[i], from);
        return sum;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) sum = pack_sum(sum, x_[i], from);
    return sum;
  }
  __device__ __forceinline__ void store_held(std::int64_t row, const Normaliser& normal) const {
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
        const float factor = exponential<T>(top_ - normal.from) * normal.scale;
#pragma unroll
        for (int i = 0; i < packs; ++i) store(row, i, scaled(x_[i], factor));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) store(row, i, normal.results(x_[i]));
  }

  /// Elements of pack i that lie in the row.
  __device__ int elements(int i) const { return inside_ ? V : min(max(left_ - i * 32 * V, 0), V); }
  __device__ std::int64_t place(const Plane& plane, std::int64_t row, int i) const {
    return row * plane.stride + column_ + i * 32 * V;
  }
  __device__ const T* data(const Plane& plane) const { return static_cast<const T*>(plane.data); }

  __device__ __forceinline__ void fetch(std::int64_t row, int i) const {
    if constexpr (ahead) {
      if (row >= p_.rows) return;
      fetch(p_.x, x_slots_, row, i);
      if constexpr (backward) fetch(p_.d, d_slots_, row, i);
    }
  }
  __device__ __forceinline__ void fetch(const Plane& plane, unsigned char* slots, std::int64_t row, int i) const {
    const int count = elements(i);
    const auto slot = static_cast<std::uint32_t>(__cvta_generic_to_shared(slots + i * 32 * pack_bytes));
    ptx::copy_async<pack_bytes>(slot, data(plane) + (count > 0 ? place(plane, row, i) : 0), count * static_cast<int>(sizeof(T)));
  }
  __device__ void fetch_resident(std::int64_t row) const {
    for (int i = packs; i < packs + p_.resident; ++i) fetch(row, i);
    ptx::commit_copies();
  }

  __device__ __forceinline__ Elements x_pack(std::int64_t row, int i) const {
    Elements out = pack(p_.x, x_slots_, row, i);
    if constexpr (!backward) {
      if (!inside_) {
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (i * 32 * V + v >= left_) out.at[v] = narrow<T>(negative_infinity());
      }
    }
    return out;
  }
  __device__ __forceinline__ Elements d_pack(std::int64_t row, int i) const { return pack(p_.d, d_slots_, row, i); }
  __device__ __forceinline__ Elements pack(const Plane& plane, const unsigned char* slots, std::int64_t row, int i) const {
    Elements out;
    if constexpr (ahead) {
      const auto words = *reinterpret_cast<const Words<sizeof out>*>(slots + i * 32 * pack_bytes);
      memcpy(&out, &words, sizeof out);
    } else {
      out.at[0] = elements(i) > 0 ? data(plane)[place(plane, row, i)] : narrow<T>(0);
    }
    return out;
  }

  __device__ __forceinline__ void store(std::int64_t row, int i, const Elements& pack) const {
    T* const to = const_cast<T*>(data(p_.to)) + place(p_.to, row, i);
    if constexpr (V > 1) {
      if (inside_) {
        Words<sizeof pack> words;
        memcpy(&words, &pack, sizeof words);
        __stwb(reinterpret_cast<Words<sizeof pack>*>(to), words);
        return;
      }
    }
    const int count = elements(i);
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < count) to[v] = pack.at[v];
  }

  const SoftmaxParams& p_;
  Elements x_[packs], d_[backward ? packs : 1];
  unsigned char *x_slots_, *d_slots_;
  std::int64_t column_;  // of the first pack
  int left_;             // elements from there to the end of the block's segment
  bool inside_;          // whether all packs of this thread are whole
  float top_ = 0;        // of this warp
};

/// A block, or a cluster of p.segments blocks, makes one row after the other.
template <class T, int V, bool backward>
__global__ void __launch_bounds__(most_row_threads, 1) row_kernel(const __grid_constant__ SoftmaxParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ RowMeeting meeting;
  RowShare<T, V, backward> share(p, memory);
  const std::int64_t apart = gridDim.x / p.segments;
  std::int64_t row = blockIdx.x / p.segments;
  share.begin(row);
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();  // the memory of a block that has not begun must not be written
#endif
  for (int turn = 0; row < p.rows; row += apart, turn = 1 - turn) {
    const SoftmaxPart part = share.take(row, row + apart);
    share.finish(row, row + apart, join_warps<backward>(part, meeting, turn));
  }
}

}  // namespace everglow::cuda
