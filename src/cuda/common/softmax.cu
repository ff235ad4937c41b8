// Softmax of f32, f16 and bf16 rows on a card, forward and backward. A row is read once and written once where it fits on chip: in
// the registers of a warp, in the shared memory of a block, or in that of a cluster of up to 16 blocks; a longer one is read twice,
// by blocks that each take a segment and leave their part of the sums in the workspace.
#include "core/arena.hpp"
#include "core/visit.hpp"
#include "cuda/common/rows.hpp"
#include "cuda/common/softmax_parts.cuh"

#include <cooperative_groups.h>

namespace everglow::cuda {
namespace {

constexpr std::int64_t warp_columns = 1024;         // a row of a warp
constexpr int warps = 4, threads = 512, batch = 4;  // rows of a block of warps; of a block; packs that are under way at once
constexpr std::int64_t slice_bytes = 32 << 10;      // of a block: four of them fill an SM, so that one loads while others store
constexpr std::int64_t segment_columns = 1 << 16;   // of a row in several launches
constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;

template <class T, int V, class Pass>
__global__ void __launch_bounds__(32 * warps) warp_kernel(const __grid_constant__ SoftmaxParams p) {
  constexpr int packs = static_cast<int>(warp_columns) / (32 * V);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.y;
  if (row >= p.rows) return;
  Pack<T, V> x[packs], d[packs];
  SoftmaxPart part = Pass::none();
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const std::int64_t column = (i * 32 + static_cast<int>(threadIdx.x)) * V;
    if (column >= p.columns) break;
    x[i] = load_pack<T, V>(p.x, row, column, p.columns);
    if constexpr (Pass::backward) d[i] = load_pack<T, V>(p.d, row, column, p.columns);
  }
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const std::int64_t column = (i * 32 + static_cast<int>(threadIdx.x)) * V;
    if (column < p.columns)
      Pass::template add<T, V>(part, x[i], d[i], static_cast<int>(min(p.columns - column, std::int64_t{V})), p.log);
  }
  const SoftmaxPart sum = join_warp<Pass>(part), whole = Pass::finish(sum, p.log);
  const bool empty = !Pass::backward && p.zero && sum.sum == 0;
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const std::int64_t column = (i * 32 + static_cast<int>(threadIdx.x)) * V;
    if (column >= p.columns) break;
    store_pack<T, V>(p.to, row, column, p.columns, softmax_results<Pass, T, V>(x[i], d[i], whole, p, empty));
  }
}

/// The part of a thread in columns [begin, end) of a row; their packs stay in the caches where there are any.
template <class T, int V, class Pass>
__device__ SoftmaxPart reduce(const SoftmaxParams& p, std::int64_t row, std::int64_t begin, std::int64_t end, Pack<T, V>* x_cache,
                              Pack<T, V>* d_cache) {
  SoftmaxPart part = Pass::none();
  const int count = static_cast<int>((end - begin + V - 1) / V);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += batch * threads) {
    Pack<T, V> x[batch], d[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int pack = first + i * threads;
      if (pack >= count) break;
      x[i] = load_pack<T, V>(p.x, row, begin + static_cast<std::int64_t>(pack) * V, end);
      if constexpr (Pass::backward) d[i] = load_pack<T, V>(p.d, row, begin + static_cast<std::int64_t>(pack) * V, end);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int pack = first + i * threads;
      if (pack >= count) break;
      if (x_cache != nullptr) x_cache[pack] = x[i];
      if (Pass::backward && d_cache != nullptr) d_cache[pack] = d[i];
      const std::int64_t left = end - begin - static_cast<std::int64_t>(pack) * V;
      Pass::template add<T, V>(part, x[i], d[i], static_cast<int>(min(left, std::int64_t{V})), p.log);
    }
  }
  return part;
}

/// Joins the parts of the blocks of a cluster, in the order of their ranks.
template <class Pass>
__device__ SoftmaxPart join_cluster(const SoftmaxPart& part, SoftmaxPart* shared) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (cluster.num_blocks() == 1) return part;
  if (threadIdx.x == 0) *shared = part;
  cluster.sync();
  SoftmaxPart whole = Pass::none();
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) whole = Pass::join(whole, *cluster.map_shared_rank(shared, rank));
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

/// A block, or a cluster of `segments` blocks, for each row.
template <class T, int V, class Pass>
__global__ void __launch_bounds__(threads) row_kernel(const __grid_constant__ SoftmaxParams p) {
  extern __shared__ __align__(16) unsigned char cache[];
  __shared__ SoftmaxPart of_warps[threads / 32], of_block;
  const std::int64_t row = blockIdx.x / p.segments;
  const std::int64_t begin = min(rank_in_cluster() * p.segment, p.columns), end = min(begin + p.segment, p.columns);
  Pack<T, V>* const x = reinterpret_cast<Pack<T, V>*>(cache);
  Pack<T, V>* const d = x + p.segment / V;
  const SoftmaxPart part = reduce<T, V, Pass>(p, row, begin, end, x, d);
  const SoftmaxPart sum = join_cluster<Pass>(join_block<Pass>(part, of_warps), &of_block);
  const SoftmaxPart whole = Pass::finish(sum, p.log);
  const bool empty = !Pass::backward && p.zero && sum.sum == 0;
  const int count = static_cast<int>((end - begin + V - 1) / V);
  for (int pack = static_cast<int>(threadIdx.x); pack < count; pack += threads)
    store_pack<T, V>(p.to, row, begin + static_cast<std::int64_t>(pack) * V, end,
                     softmax_results<Pass, T, V>(x[pack], Pass::backward ? d[pack] : x[pack], whole, p, empty));
}

/// The part of each segment, for rows that do not fit.
template <class T, int V, class Pass>
__global__ void __launch_bounds__(threads) part_kernel(const __grid_constant__ SoftmaxParams p) {
  __shared__ SoftmaxPart of_warps[threads / 32];
  const std::int64_t row = blockIdx.x / p.segments, begin = blockIdx.x % p.segments * p.segment;
  const SoftmaxPart part = reduce<T, V, Pass>(p, row, begin, min(begin + p.segment, p.columns), nullptr, nullptr);
  const SoftmaxPart sum = join_block<Pass>(part, of_warps);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = sum;
}

template <class T, int V, class Pass>
__global__ void __launch_bounds__(threads) end_kernel(const __grid_constant__ SoftmaxParams p) {
  __shared__ SoftmaxPart of_warps[threads / 32];
  const std::int64_t row = blockIdx.x / p.segments, begin = blockIdx.x % p.segments * p.segment;
  SoftmaxPart part = Pass::none();
  for (std::int64_t s = threadIdx.x; s < p.segments; s += threads) part = Pass::join(part, p.parts[row * p.segments + s]);
  const SoftmaxPart sum = join_block<Pass>(part, of_warps), whole = Pass::finish(sum, p.log);
  const bool empty = !Pass::backward && p.zero && sum.sum == 0;
  const std::int64_t end = min(begin + p.segment, p.columns);
  const int count = static_cast<int>((end - begin + V - 1) / V);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += batch * threads) {
    Pack<T, V> x[batch], d[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const std::int64_t column = begin + static_cast<std::int64_t>(first + i * threads) * V;
      if (column >= end) break;
      x[i] = load_pack<T, V>(p.x, row, column, end);
      if constexpr (Pass::backward) d[i] = load_pack<T, V>(p.d, row, column, end);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const std::int64_t column = begin + static_cast<std::int64_t>(first + i * threads) * V;
      if (column >= end) break;
      store_pack<T, V>(p.to, row, column, end, softmax_results<Pass, T, V>(x[i], d[i], whole, p, empty));
    }
  }
}

/// How rows of so many columns are made on a card.
struct Shape {
  int blocks = 0;             // of a cluster; 0: by warps, or in two launches where `segments` > 0
  std::int64_t segment = 0;   // columns of a block or of a launch's segment
  std::int64_t segments = 0;  // blocks of a cluster or segments of a row
};

Shape shape_of(const DeviceFigures& card, std::int64_t columns, std::int64_t bytes_a_column) {
  if (columns <= warp_columns) return {};
  constexpr std::int64_t unit = 8, reserved = 2048;  // columns of a segment are whole packs; static shared memory
  const std::int64_t most = (card.shared_bytes - reserved) / bytes_a_column / unit * unit;
  const auto slice = [&](std::int64_t blocks) { return ((columns + blocks - 1) / blocks + unit - 1) / unit * unit; };
  std::int64_t blocks = 1;
  while (2 * blocks <= card.largest_cluster && slice(blocks) * bytes_a_column > slice_bytes) blocks *= 2;
  if (slice(blocks) <= most) return {static_cast<int>(blocks), slice(blocks), blocks};
  return {0, segment_columns, (columns + segment_columns - 1) / segment_columns};
}

template <class Kernel>
void launch_cluster(const Kernel& kernel, const SoftmaxParams& p, const Shape& shape, std::int64_t shared, cudaStream_t stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "softmax");
  if (shape.blocks > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "softmax");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.rows * shape.blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = shape.blocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, p), "softmax");
}

template <class T, int V, class Pass>
void launch(const SoftmaxParams& p, const Shape& shape, cudaStream_t stream) {
  if (shape.segments == 0) {
    warp_kernel<T, V, Pass><<<static_cast<unsigned>((p.rows + warps - 1) / warps), dim3(32, warps), 0, stream>>>(p);
  } else if (shape.blocks > 0) {
    const std::int64_t shared = shape.segment * static_cast<std::int64_t>(sizeof(T)) * (Pass::backward ? 2 : 1);
    launch_cluster(row_kernel<T, V, Pass>, p, shape, shared, stream);
  } else {
    const auto blocks = static_cast<unsigned>(p.rows * shape.segments);
    part_kernel<T, V, Pass><<<blocks, threads, 0, stream>>>(p);
    end_kernel<T, V, Pass><<<blocks, threads, 0, stream>>>(p);
  }
  check_launch("softmax");
}

Plane from_row(Plane plane, std::int64_t row, std::size_t size) {
  if (plane.data != nullptr)
    plane.data = static_cast<const char*>(plane.data) + row * plane.stride * static_cast<std::int64_t>(size);
  return plane;
}

template <class T, class Pass>
void launch_rows(const SoftmaxQuery& query, SoftmaxParams p, cudaStream_t stream) {
  constexpr int V = 16 / static_cast<int>(sizeof(T));
  const bool whole = packs(p.x, p.rows, sizeof(T), 16) && packs(p.to, p.rows, sizeof(T), 16) &&
                     (!Pass::backward || packs(p.d, p.rows, sizeof(T), 16));
  const Shape shape = shape_of(query.device.figures, p.columns, sizeof(T) * (Pass::backward ? 2 : 1));
  p.segment = shape.segment, p.segments = std::max<std::int64_t>(shape.segments, 1);
  const std::int64_t rows = p.rows, at_once = most_blocks / p.segments;
  const SoftmaxParams all = p;
  for (std::int64_t row = 0; row < rows; row += at_once) {
    p.x = from_row(all.x, row, sizeof(T)), p.d = from_row(all.d, row, sizeof(T)), p.to = from_row(all.to, row, sizeof(T));
    p.rows = std::min(at_once, rows - row);
    if (whole)
      launch<T, V, Pass>(p, shape, stream);
    else
      launch<T, 1, Pass>(p, shape, stream);
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

template <class Pass>
void run(const SoftmaxQuery& query, SoftmaxParams p, void* workspace, const Stream& stream) {
  if (p.rows == 0 || p.columns == 0) return;
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  p.parts = parts_of(query, arena);
  p.log = query.description.log, p.zero = query.description.masked_row == MaskedRow::zero;
  visit_storage(query.description.dtype,
                [&](auto element) { launch_rows<Stored<decltype(element)>, Pass>(query, p, stream_of(stream)); });
}

Plane plane_of(const ConstTensorView& view) { return {view.data, view.strides[0], 1}; }

void forward(const SoftmaxQuery& query, const SoftmaxForward& t, void* workspace, const Stream& stream) {
  SoftmaxParams p{};
  p.x = plane_of(t.x), p.to = plane_of(t.y), p.rows = t.x.size(0), p.columns = t.x.size(1);
  run<Forward>(query, p, workspace, stream);
}

void backward(const SoftmaxQuery& query, const SoftmaxBackward& t, void* workspace, const Stream& stream) {
  SoftmaxParams p{};
  p.x = plane_of(t.y), p.d = plane_of(t.dy), p.to = plane_of(t.dx), p.rows = t.y.size(0), p.columns = t.y.size(1);
  run<Backward>(query, p, workspace, stream);
}

Verdict accepts(const SoftmaxQuery& query) {
  const Verdict storage = accept_storage(query.description.dtype);
  return storage.accepted ? accept_device(query.device) : storage;
}

}  // namespace

const SoftmaxRow softmax_online{.name = "cuda.softmax_online",
                                .accepts = accepts,
                                .footprint = arena_footprint<parts_of, SoftmaxQuery>,
                                .forward = forward,
                                .backward = backward};

}  // namespace everglow::cuda
