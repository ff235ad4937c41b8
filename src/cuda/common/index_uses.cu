// A stable radix sort of positions by their indices, eight bits at a time: digits are counted for each tile, the counts become
// offsets, and each tile moves its positions there in their order. No result depends on which block runs first.
#include "cuda/common/index_uses.hpp"

#include "cuda/common/device.hpp"
#include "cuda/common/index_list.cuh"

#include <algorithm>
#include <bit>

namespace everglow::cuda {
namespace {

constexpr std::string_view where = "embedding.backward";
constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr int threads = 256, warps = threads / 32, rounds = 8;
constexpr std::int64_t tile = threads * rounds;
static_assert(threads == digits, "a thread looks after the counts of one digit");

struct SortParams {
  IndexList indices;
  std::int64_t vocabulary, padding;
  const std::int64_t* from;  // null: 0, 1, 2, ...
  std::int64_t* to;
  std::int64_t* counts;  // [digits, tiles]
  std::int64_t n, tiles;
  int shift;
};

/// The row that a position uses; the vocabulary's size where it uses none.
__device__ std::int64_t row_used(const SortParams& p, std::int64_t position) {
  const std::int64_t index = p.indices[position];
  return index >= 0 && index < p.vocabulary && index != p.padding ? index : p.vocabulary;
}
__device__ std::int64_t position_at(const SortParams& p, std::int64_t i) { return p.from == nullptr ? i : p.from[i]; }
__device__ int digit_of(const SortParams& p, std::int64_t position) {
  return static_cast<int>(row_used(p, position) >> p.shift & (digits - 1));
}

__global__ void __launch_bounds__(threads) count_kernel(const __grid_constant__ SortParams p) {
  __shared__ int counts[digits];
  counts[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t i = blockIdx.x * tile + round * threads + threadIdx.x;
    if (i < p.n) atomicAdd(&counts[digit_of(p, position_at(p, i))], 1);
  }
  __syncthreads();
  p.counts[threadIdx.x * p.tiles + blockIdx.x] = counts[threadIdx.x];
}

constexpr int scan_threads = 1024;

/// The sum of the values of the threads before this one, and of all.
struct Before {
  std::int64_t sum, total;
};
__device__ Before sum_before(std::int64_t value, std::int64_t* sums_of_warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int64_t sum = value;
  for (int apart = 1; apart < 32; apart *= 2) {
    const std::int64_t other = __shfl_up_sync(~0U, sum, apart);
    if (lane >= apart) sum += other;
  }
  if (lane == 31) sums_of_warps[warp] = sum;
  __syncthreads();
  std::int64_t before = sum - value, total = 0;
  for (int w = 0; w < scan_threads / 32; ++w) {
    if (w == warp) before += total;
    total += sums_of_warps[w];
  }
  __syncthreads();
  return {before, total};
}

/// Counts become sums of the counts before them; one block.
__global__ void __launch_bounds__(scan_threads) scan_kernel(std::int64_t* counts, std::int64_t n) {
  constexpr int items = 4;
  __shared__ std::int64_t sums_of_warps[scan_threads / 32];
  std::int64_t carry = 0;
  for (std::int64_t begin = 0; begin < n; begin += scan_threads * items) {
    std::int64_t values[items], sum = 0;
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const std::int64_t i = begin + threadIdx.x * items + k;
      values[k] = i < n ? counts[i] : 0;
      sum += values[k];
    }
    const Before before = sum_before(sum, sums_of_warps);
    std::int64_t offset = carry + before.sum;
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const std::int64_t i = begin + threadIdx.x * items + k;
      if (i < n) counts[i] = offset;
      offset += values[k];
    }
    carry += before.total;
  }
}

/// Each warp has a stretch of the tile and goes through it 32 positions at a time: the rank of a position among those of its digit
/// is what the warp has counted before plus the lanes below with the same digit.
__global__ void __launch_bounds__(threads) move_kernel(const __grid_constant__ SortParams p) {
  __shared__ int counts[warps][digits];
  __shared__ std::int64_t bases[digits];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = lane; d < digits; d += 32) counts[warp][d] = 0;
  __syncwarp();
  const std::int64_t begin = blockIdx.x * tile + warp * (32 * rounds) + lane;
  std::int64_t position[rounds];
  int digit[rounds], rank[rounds];
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const bool there = begin + round * 32 < p.n;
    const unsigned active = __ballot_sync(~0U, there);
    if (there) {
      position[round] = position_at(p, begin + round * 32);
      digit[round] = digit_of(p, position[round]);
      const unsigned same = __match_any_sync(active, digit[round]);
      const int below = __popc(same & ((1U << lane) - 1)), counted = counts[warp][digit[round]];
      __syncwarp(active);
      if (below == 0) counts[warp][digit[round]] = counted + __popc(same);
      rank[round] = counted + below;
    }
    __syncwarp();
  }
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < warps; ++w) {
    const int count = counts[w][threadIdx.x];
    counts[w][threadIdx.x] = sum;
    sum += count;
  }
  bases[threadIdx.x] = p.counts[threadIdx.x * p.tiles + blockIdx.x];
  __syncthreads();
#pragma unroll
  for (int round = 0; round < rounds; ++round)
    if (begin + round * 32 < p.n) p.to[bases[digit[round]] + counts[warp][digit[round]] + rank[round]] = position[round];
}

/// The first and the last use of each row that has one; `from` is sorted.
__global__ void __launch_bounds__(threads)
    edges_kernel(const __grid_constant__ SortParams p, std::int64_t* first, std::int64_t* last) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= p.n) return;
  const std::int64_t row = row_used(p, p.from[i]);
  if (row == p.vocabulary) return;
  if (i == 0 || row_used(p, p.from[i - 1]) != row) first[row] = i;
  if (i == p.n - 1 || row_used(p, p.from[i + 1]) != row) last[row] = i + 1;
}

std::int64_t tiles_of(std::int64_t indices) { return (indices + tile - 1) / tile; }

}  // namespace

IndexUsesRooms index_uses_rooms(std::int64_t indices, std::int64_t vocabulary, Arena& arena) {
  IndexUsesRooms out;
  for (std::int64_t*& order : out.orders) order = arena.take<std::int64_t>(indices);
  out.counts = arena.take<std::int64_t>(digits * tiles_of(indices));
  out.first = arena.take<std::int64_t>(vocabulary);
  out.last = arena.take<std::int64_t>(vocabulary);
  return out;
}

IndexUses find_index_uses(const IndexUsesQuery& query, const IndexUsesRooms& rooms, cudaStream_t stream) {
  const std::int64_t n = query.indices.size(0), tiles = tiles_of(n);
  if (query.vocabulary > 0)
    check(cudaMemsetAsync(rooms.first, 0xFF, static_cast<std::size_t>(query.vocabulary) * sizeof(std::int64_t), stream), where);
  if (n == 0) return {rooms.orders[0], rooms.first, rooms.last};
  SortParams p{.indices = index_list_of(query.indices),
               .vocabulary = query.vocabulary,
               .padding = query.padding,
               .from = nullptr,
               .to = rooms.orders[0],
               .counts = rooms.counts,
               .n = n,
               .tiles = tiles,
               .shift = 0};
  const int bits = std::max(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(query.vocabulary))), 1);
  int turn = 0;
  for (p.shift = 0; p.shift < bits; p.shift += digit_bits) {
    p.to = rooms.orders[turn];
    count_kernel<<<static_cast<unsigned>(tiles), threads, 0, stream>>>(p);
    scan_kernel<<<1, scan_threads, 0, stream>>>(p.counts, digits * tiles);
    move_kernel<<<static_cast<unsigned>(tiles), threads, 0, stream>>>(p);
    p.from = p.to;
    turn = 1 - turn;
  }
  edges_kernel<<<static_cast<unsigned>((n + threads - 1) / threads), threads, 0, stream>>>(p, rooms.first, rooms.last);
  check_launch(where);
  return {const_cast<std::int64_t*>(p.from), rooms.first, rooms.last};
}

}  // namespace everglow::cuda
