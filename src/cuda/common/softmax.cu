// Softmax of f32, f16 and bf16 rows on a card, forward and backward. A row is read once and written once where it fits on chip: in
// the registers of a warp, in the shared memory of a block, or in that of a cluster of up to 16 blocks; a longer one is read twice,
// by blocks that each take a segment and leave their part of the sums in the workspace.
#include "core/arena.hpp"
#include "core/visit.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/rows.hpp"
#include "cuda/common/softmax_parts.cuh"

#include <cooperative_groups.h>

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr std::int64_t warp_columns = 1024;  // of a row that a warp makes
constexpr int warps = 4, batch = 4;          // rows of a block of warps; packs of a thread that are under way at once
constexpr int least_threads = 64, usual_threads = 512, most_threads = 1024;
constexpr std::int64_t slice_bytes = 72 << 10;     // of a block: three fill an SM, so that one loads while others store
constexpr std::int64_t large_slice = 100 << 10;    // alone on its SM: more threads
constexpr std::int64_t segment_columns = 1 << 16;  // of a row in two launches
constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;

/// What stands for elements past the end of a row: nothing to a maximum, a sum of exponentials or one of products.
template <bool backward>
__device__ inline float filler() {
  return backward ? 0 : negative_infinity();
}

/// P packs of each lane hold a row.
template <class T, int V, int P, bool backward>
__global__ void __launch_bounds__(32 * warps) warp_kernel(const __grid_constant__ SoftmaxParams p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.y;
  if (row >= p.rows) return;
  const auto column_of = [](int i) { return static_cast<std::int64_t>(i * 32 + static_cast<int>(threadIdx.x)) * V; };
  Pack<T, V> x[P], d[backward ? P : 1];
  float top = negative_infinity(), sum = 0;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    if (column_of(i) >= p.columns) break;
    x[i] = load_pack<T, V>(p.x, row, column_of(i), p.columns, filler<backward>());
    if constexpr (backward) d[i] = load_pack<T, V>(p.d, row, column_of(i), p.columns);
  }
#pragma unroll
  for (int i = 0; i < P; ++i) {
    if (column_of(i) >= p.columns) break;
    if constexpr (backward)
      sum = pack_products(sum, x[i], d[i], p.log);
    else
      top = pack_max(top, x[i]);
  }
  if constexpr (!backward) {
    top = join_max(top);
#pragma unroll
    for (int i = 0; i < P; ++i)
      if (column_of(i) < p.columns) sum = pack_sum(sum, x[i], below(top));
  }
  sum = join_sum(sum);
  const Normaliser whole({top, sum}, p);
#pragma unroll
  for (int i = 0; i < P; ++i) {
    if (column_of(i) >= p.columns) break;
    if constexpr (backward)
      store_pack(p.to, row, column_of(i), p.columns, gradients(x[i], d[i], sum, p.log));
    else
      store_pack(p.to, row, column_of(i), p.columns, whole.results(x[i]));
  }
}

/// Calls f(first pack, whether it is there) for the packs of a thread in columns [begin, end), so many at once that their loads are
/// under way together.
template <class T, int V, bool backward, class F>
__device__ inline void for_batches(const SoftmaxParams& p, std::int64_t row, std::int64_t begin, std::int64_t end, const F& f) {
  const int count = static_cast<int>((end - begin + V - 1) / V), threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += batch * threads) {
    Pack<T, V> x[batch], d[backward ? batch : 1];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int pack = first + i * threads;
      if (pack >= count) break;
      x[i] = load_pack<T, V>(p.x, row, begin + static_cast<std::int64_t>(pack) * V, end, filler<backward>());
      if constexpr (backward) d[i] = load_pack<T, V>(p.d, row, begin + static_cast<std::int64_t>(pack) * V, end);
    }
    f(x, d, first, count);
  }
}

/// Joins the parts of the blocks of a cluster, in the order of their ranks.
template <bool backward>
__device__ SoftmaxPart join_cluster(const SoftmaxPart& part, SoftmaxPart* shared) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (cluster.num_blocks() == 1) return part;
  if (threadIdx.x == 0) *shared = part;
  cluster.sync();
  SoftmaxPart whole = *cluster.map_shared_rank(shared, 0);
  for (unsigned rank = 1; rank < cluster.num_blocks(); ++rank) {
    const SoftmaxPart other = *cluster.map_shared_rank(shared, rank);
    whole = backward ? SoftmaxPart{0, whole.sum + other.sum} : join(whole, other);
  }
  cluster.sync();  // a block's memory must stay until all others have read it
  return whole;
#else
  return part;
#endif
}

__device__ inline std::int64_t rank_in_cluster() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().block_rank();
#else
  return 0;
#endif
}

/// A block, or a cluster of `segments` blocks, for each row, which stays in shared memory. Every thread reads there what it wrote.
template <class T, int V, bool backward>
__global__ void __launch_bounds__(most_threads) row_kernel(const __grid_constant__ SoftmaxParams p) {
  extern __shared__ __align__(16) unsigned char cache[];
  __shared__ float of_warps[2][32];
  __shared__ SoftmaxPart of_block;
  const std::int64_t row = blockIdx.x / p.segments;
  const std::int64_t begin = min(rank_in_cluster() * p.segment, p.columns), end = min(begin + p.segment, p.columns);
  Pack<T, V>* const x_cache = reinterpret_cast<Pack<T, V>*>(cache);
  Pack<T, V>* const d_cache = x_cache + p.segment / V;
  const int count = static_cast<int>((end - begin + V - 1) / V), threads = static_cast<int>(blockDim.x);
  SoftmaxPart part{negative_infinity(), 0};
  for_batches<T, V, backward>(p, row, begin, end, [&](const auto& x, const auto& d, int first, int) {
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int pack = first + i * threads;
      if (pack >= count) break;
      x_cache[pack] = x[i];
      if constexpr (backward) {
        d_cache[pack] = d[i];
        part.sum = pack_products(part.sum, x[i], d[i], p.log);
      } else {
        part.top = pack_max(part.top, x[i]);
      }
    }
  });
  if constexpr (!backward) {
    part.top = join_block(part.top, negative_infinity(), of_warps[0], join_max);
    const float from = below(part.top);
#pragma unroll 4
    for (int pack = static_cast<int>(threadIdx.x); pack < count; pack += threads)
      part.sum = pack_sum(part.sum, x_cache[pack], from);
  }
  part.sum = join_block(part.sum, 0.0F, of_warps[1], join_sum);
  part = join_cluster<backward>(part, &of_block);
  const Normaliser whole(part, p);
#pragma unroll 4
  for (int pack = static_cast<int>(threadIdx.x); pack < count; pack += threads) {
    const std::int64_t column = begin + static_cast<std::int64_t>(pack) * V;
    if constexpr (backward)
      store_pack(p.to, row, column, end, gradients(x_cache[pack], d_cache[pack], part.sum, p.log));
    else
      store_pack(p.to, row, column, end, whole.results(x_cache[pack]));
  }
}

/// The part of each segment, for rows that do not fit: one reading, in which the sum follows the top.
template <class T, int V, bool backward>
__global__ void __launch_bounds__(usual_threads) part_kernel(const __grid_constant__ SoftmaxParams p) {
  __shared__ float of_warps[2][32];
  const int threads = static_cast<int>(blockDim.x);
  const std::int64_t row = blockIdx.x / p.segments, begin = blockIdx.x % p.segments * p.segment;
  const std::int64_t end = min(begin + p.segment, p.columns);
  SoftmaxPart part{negative_infinity(), 0};
  for_batches<T, V, backward>(p, row, begin, end, [&](const auto& x, const auto& d, int first, int count) {
    [[maybe_unused]] float top = part.top;
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (first + i * threads >= count) break;
      if constexpr (backward)
        part.sum = pack_products(part.sum, x[i], d[i], p.log);
      else
        top = pack_max(top, x[i]);
    }
    if constexpr (!backward) {
      const float from = below(top);
      part.sum *= exponential<T>(part.top - from);
#pragma unroll
      for (int i = 0; i < batch; ++i)
        if (first + i * threads < count) part.sum = pack_sum(part.sum, x[i], from);
      part.top = top;
    }
  });
  float top = 0;
  if constexpr (!backward) {
    top = join_block(part.top, negative_infinity(), of_warps[0], join_max);
    part.sum *= exponential<T>(part.top - below(top));
  }
  const float sum = join_block(part.sum, 0.0F, of_warps[1], join_sum);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = {top, sum};
}

template <class T, int V, bool backward>
__global__ void __launch_bounds__(usual_threads) end_kernel(const __grid_constant__ SoftmaxParams p) {
  __shared__ float of_warps[2][32];
  const int threads = static_cast<int>(blockDim.x);
  const std::int64_t row = blockIdx.x / p.segments, begin = blockIdx.x % p.segments * p.segment;
  SoftmaxPart part{negative_infinity(), 0};
  for (std::int64_t s = threadIdx.x; s < p.segments; s += threads) {
    const SoftmaxPart other = p.parts[row * p.segments + s];
    part = backward ? SoftmaxPart{0, part.sum + other.sum} : join(part, other);
  }
  if constexpr (!backward) {
    const float top = join_block(part.top, negative_infinity(), of_warps[0], join_max);
    part.sum *= expf(part.top - below(top));
    part.top = top;
  }
  part.sum = join_block(part.sum, 0.0F, of_warps[1], join_sum);
  const Normaliser whole(part, p);
  const std::int64_t end = min(begin + p.segment, p.columns);
  for_batches<T, V, backward>(p, row, begin, end, [&](const auto& x, const auto& d, int first, int count) {
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int pack = first + i * threads;
      if (pack >= count) break;
      const std::int64_t column = begin + static_cast<std::int64_t>(pack) * V;
      if constexpr (backward)
        store_pack(p.to, row, column, end, gradients(x[i], d[i], part.sum, p.log));
      else
        store_pack(p.to, row, column, end, whole.results(x[i]));
    }
  });
}

/// How rows of so many columns are made on a card.
struct Shape {
  int blocks = 0;             // of a cluster; 0: by warps, or in two launches where `segments` > 0
  std::int64_t segment = 0;   // columns of a block or of a launch's segment
  std::int64_t segments = 0;  // blocks of a cluster or segments of a row
};

Shape shape_of(const DeviceFigures& card, std::int64_t columns, std::int64_t bytes_a_column) {
  if (columns <= warp_columns) return {};
  constexpr std::int64_t unit = 8, reserved = 1024;  // columns of a segment are whole packs; static shared memory
  const std::int64_t most = (card.shared_bytes - reserved) / bytes_a_column / unit * unit;
  const auto slice = [&](std::int64_t blocks) { return ((columns + blocks - 1) / blocks + unit - 1) / unit * unit; };
  // Clusters are in the machine code of 9.0 alone: newer cards run the PTX of 8.0, which has none.
  const std::int64_t largest = card.capability == 90 ? card.largest_cluster : 1;
  std::int64_t blocks = 1;
  while (2 * blocks <= largest && slice(blocks) * bytes_a_column > slice_bytes) blocks *= 2;
  if (slice(blocks) <= most) return {static_cast<int>(blocks), slice(blocks), blocks};
  return {0, segment_columns, (columns + segment_columns - 1) / segment_columns};
}

/// Threads of a block, so that each has a batch of packs.
int threads_of(std::int64_t packs, std::int64_t bytes) {
  const int most = bytes > large_slice ? most_threads : usual_threads;
  int threads = least_threads;
  while (threads < most && threads * batch < packs) threads *= 2;
  return threads;
}

template <class T, int V, bool backward>
void launch_row(const SoftmaxParams& p, const Shape& shape, cudaStream_t stream) {
  const auto kernel = row_kernel<T, V, backward>;
  const std::int64_t shared = shape.segment * static_cast<std::int64_t>(sizeof(T)) * (backward ? 2 : 1);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "softmax");
  if (shape.blocks > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "softmax");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.rows * shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads_of(shape.segment / V, shared)));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = shape.blocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, p), "softmax");
}

/// The first of these numbers of packs that hold a row.
template <class T, int V, bool backward, int P, int... Larger>
void launch_warps(const SoftmaxParams& p, cudaStream_t stream) {
  if constexpr (sizeof...(Larger) > 0)
    if (p.columns > 32 * V * P) return launch_warps<T, V, backward, Larger...>(p, stream);
  warp_kernel<T, V, P, backward><<<static_cast<unsigned>((p.rows + warps - 1) / warps), dim3(32, warps), 0, stream>>>(p);
}

template <class T, int V, bool backward>
void launch(const SoftmaxParams& p, const Shape& shape, cudaStream_t stream) {
  if (shape.segments == 0) {
    if constexpr (V == 1)
      launch_warps<T, V, backward, 2, 8, 32>(p, stream);
    else if constexpr (V == 4)
      launch_warps<T, V, backward, 1, 2, 4, 8>(p, stream);
    else
      launch_warps<T, V, backward, 1, 2, 4>(p, stream);
  } else if (shape.blocks > 0) {
    launch_row<T, V, backward>(p, shape, stream);
  } else {
    const auto blocks = static_cast<unsigned>(p.rows * shape.segments);
    part_kernel<T, V, backward><<<blocks, usual_threads, 0, stream>>>(p);
    end_kernel<T, V, backward><<<blocks, usual_threads, 0, stream>>>(p);
  }
  check_launch("softmax");
}

Plane from_row(Plane plane, std::int64_t row, std::size_t size) {
  if (plane.data != nullptr)
    plane.data = static_cast<const char*>(plane.data) + row * plane.stride * static_cast<std::int64_t>(size);
  return plane;
}

template <class T, bool backward>
void launch_rows(const SoftmaxQuery& query, SoftmaxParams p, cudaStream_t stream) {
  constexpr int V = 16 / static_cast<int>(sizeof(T)), half = sizeof(T) == 2 ? 4 : 1;
  const auto fits = [&](std::size_t bytes) {
    return packs(p.x, p.rows, sizeof(T), bytes) && packs(p.to, p.rows, sizeof(T), bytes) &&
           (!backward || packs(p.d, p.rows, sizeof(T), bytes));
  };
  const bool on_16_bytes = fits(16), on_8_bytes = half > 1 && fits(8);
  const Shape shape = shape_of(query.device.figures, p.columns, sizeof(T) * (backward ? 2 : 1));
  p.segment = shape.segment, p.segments = std::max<std::int64_t>(shape.segments, 1);
  const std::int64_t rows = p.rows, at_once = most_blocks / p.segments;
  const SoftmaxParams all = p;
  for (std::int64_t row = 0; row < rows; row += at_once) {
    p.x = from_row(all.x, row, sizeof(T)), p.d = from_row(all.d, row, sizeof(T)), p.to = from_row(all.to, row, sizeof(T));
    p.rows = std::min(at_once, rows - row);
    if (on_16_bytes)
      launch<T, V, backward>(p, shape, stream);
    else if (on_8_bytes)
      launch<T, half, backward>(p, shape, stream);
    else
      launch<T, 1, backward>(p, shape, stream);
  }
}

SoftmaxPart* parts_of(const SoftmaxQuery& query, Arena& arena) {
  const auto size = static_cast<std::int64_t>(size_of(query.description.dtype));
  std::int64_t segments = 0;
  for (const std::int64_t tensors : {1, 2}) {
    const Shape shape = shape_of(query.device.figures, query.sizes.columns, size * tensors);
    if (shape.blocks == 0) segments = std::max(segments, shape.segments);
  }
  return arena.take<SoftmaxPart>(query.sizes.rows * segments);
}

template <bool backward>
void run(const SoftmaxQuery& query, SoftmaxParams p, void* workspace, const Stream& stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  p.parts = parts_of(query, arena);
  p.log = query.description.log, p.zero = query.description.masked_row == MaskedRow::zero;
  visit_storage(query.description.dtype,
                [&](auto element) { launch_rows<Stored<decltype(element)>, backward>(query, p, stream_of(stream)); });
}

Plane plane_of(const ConstTensorView& view) { return {view.data, view.strides[0], 1}; }

void forward(const SoftmaxQuery& query, const SoftmaxForward& t, void* workspace, const Stream& stream) {
  SoftmaxParams p{};
  p.x = plane_of(t.x), p.to = plane_of(t.y), p.rows = t.x.size(0), p.columns = t.x.size(1);
  run<false>(query, p, workspace, stream);
}

void backward(const SoftmaxQuery& query, const SoftmaxBackward& t, void* workspace, const Stream& stream) {
  SoftmaxParams p{};
  p.x = plane_of(t.y), p.d = plane_of(t.dy), p.to = plane_of(t.dx), p.rows = t.y.size(0), p.columns = t.y.size(1);
  run<true>(query, p, workspace, stream);
}

}  // namespace

const SoftmaxRow softmax_online{.name = "cuda.softmax_online",
                                .accepts = accept_storage_on_card<SoftmaxQuery>,
                                .footprint = arena_footprint<parts_of, SoftmaxQuery>,
                                .forward = forward,
                                .backward = backward};

}  // namespace everglow::cuda
