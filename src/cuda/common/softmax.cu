// Softmax of f32, f16 and bf16 rows on a card, forward and backward. A row is read once and written once where it fits on chip: in
// a warp, a block, or a cluster of up to 16 blocks; a longer one is read twice, by blocks that each take a segment and leave their
// part of the sums in the workspace.
#include "core/arena.hpp"
#include "core/visit.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/rows.hpp"
#include "cuda/common/softmax_rows.cuh"

#include <algorithm>
#include <mutex>
#include <vector>

namespace everglow::cuda {
namespace {

constexpr std::int64_t warp_columns = 1024;  // of a row that a warp makes
constexpr int warps = 4, batch = 4;          // rows of a block of warps; packs of a thread that are under way at once
constexpr int usual_threads = 512;
constexpr int shared_threads = 512;                          // of a block, of which several share a multiprocessor
constexpr std::int64_t segment_columns = 1 << 16;            // of a row in two launches
constexpr std::int64_t most_blocks = std::int64_t{1} << 30;  // and rows of a launch: the sum of two has 31 bits

/// What stands for elements past the end of a row: nothing to a maximum, a sum of exponentials or one of products.
template <bool backward>
__device__ inline float filler() {
  return backward ? 0 : negative_infinity();
}

/// Rows that each lane makes at once, so that short ones keep memory busy too.
template <class T>
constexpr int rows_of_lane(int packs) {
  return sizeof(T) == 2 && packs < 4 ? 4 / packs : 1;
}

/// P packs of each of L lanes hold a row.
template <class T, int V, int P, int L, bool backward>
__global__ void __launch_bounds__(32 * warps) warp_kernel(const __grid_constant__ SoftmaxParams p) {
  constexpr int R = rows_of_lane<T>(P);
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * (32 * warps) + threadIdx.x) / L * R;
  const auto column_of = [](int i) { return static_cast<std::int64_t>(i * L + static_cast<int>(threadIdx.x) % L) * V; };
  const auto for_packs = [&](const auto& f) {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < P; ++i)
        if (row + r < p.rows && column_of(i) < p.columns) f(r, i);
  };
  Pack<T, V> x[R][P], d[R][backward ? P : 1];
  SoftmaxPart part[R];
  for (SoftmaxPart& of_row : part) of_row = {negative_infinity(), 0};
  for_packs([&](int r, int i) {
    x[r][i] = load_pack<T, V>(p.x, row + r, column_of(i), p.columns, filler<backward>());
    if constexpr (backward) d[r][i] = load_pack<T, V>(p.d, row + r, column_of(i), p.columns);
  });
  if constexpr (backward) {
    for_packs([&](int r, int i) { part[r].sum = pack_products(part[r].sum, x[r][i], d[r][i], p.log); });
  } else {
    for_packs([&](int r, int i) { part[r].top = pack_max(part[r].top, x[r][i]); });
#pragma unroll
    for (int r = 0; r < R; ++r) part[r].top = join_max<L>(part[r].top);
    for_packs([&](int r, int i) { part[r].sum = pack_sum(part[r].sum, x[r][i], below(part[r].top)); });
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    part[r].sum = join_sum<L>(part[r].sum);
    const Normaliser whole(part[r], p);
#pragma unroll
    for (int i = 0; i < P; ++i) {
      if (row + r >= p.rows || column_of(i) >= p.columns) continue;
      if constexpr (backward)
        store_pack(p.to, row + r, column_of(i), p.columns, gradients(x[r][i], d[r][i], part[r].sum, p.log));
      else
        store_pack(p.to, row + r, column_of(i), p.columns, whole.results(x[r][i]));
    }
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
    top = join_block(part.top, negative_infinity(), of_warps[0], join_max<>);
    part.sum *= exponential<T>(part.top - below(top));
  }
  const float sum = join_block(part.sum, 0.0F, of_warps[1], join_sum<>);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = {top, sum};
}

template <class T, int V, bool backward>
__global__ void __launch_bounds__(usual_threads) end_kernel(const __grid_constant__ SoftmaxParams p) {
  __shared__ float of_warps[2][32];
  const int threads = static_cast<int>(blockDim.x);
  // Backwards: what was read last is still in the second-level cache.
  const std::int64_t block = gridDim.x - 1 - blockIdx.x, row = block / p.segments, begin = block % p.segments * p.segment;
  SoftmaxPart part{negative_infinity(), 0};
  for (std::int64_t s = threadIdx.x; s < p.segments; s += threads) {
    const SoftmaxPart other = p.parts[row * p.segments + s];
    part = backward ? SoftmaxPart{0, part.sum + other.sum} : join(part, other);
  }
  if constexpr (!backward) {
    const float top = join_block(part.top, negative_infinity(), of_warps[0], join_max<>);
    part.sum *= expf(part.top - below(top));
    part.top = top;
  }
  part.sum = join_block(part.sum, 0.0F, of_warps[1], join_sum<>);
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
  int threads = 0;            // of a block
  int resident = 0;           // packs of a thread in shared memory beside those in registers
  std::int64_t shared = 0;    // bytes
};

/// Shared memory that the host may give a block of row_kernel.
std::int64_t most_shared(const DeviceFigures& card) { return card.shared_bytes - static_cast<std::int64_t>(sizeof(RowMeeting)); }

/// Clusters are in the machine code of 9.0 alone: newer cards run the PTX of 8.0, which has none.
constexpr bool built_for_clusters = [] {
  for (const int architecture : {__CUDA_ARCH_LIST__})
    if (architecture == 900) return true;
  return false;
}();

/// Of rows that are moved in packs of so many bytes.
struct Moves {
  std::int64_t pack_bytes = 0, element_bytes = 0, tensors = 1;
};

Shape shape_of(const DeviceFigures& card, std::int64_t columns, const Moves& moves) {
  if (columns <= warp_columns) return {};
  constexpr std::int64_t unit = 8;  // columns of a segment are whole packs
  const std::int64_t width = moves.pack_bytes / moves.element_bytes;
  const std::int64_t held = held_packs(static_cast<int>(moves.pack_bytes), static_cast<int>(moves.tensors));
  const std::int64_t largest = built_for_clusters && card.capability == 90 ? card.largest_cluster : 1;
  const auto slice = [&](std::int64_t blocks) { return ((columns + blocks - 1) / blocks + unit - 1) / unit * unit; };
  const auto packs_of = [&](std::int64_t blocks) { return (slice(blocks) + width - 1) / width; };
  const auto threads_for = [](std::int64_t packs, std::int64_t each) { return (packs + 32 * each - 1) / (32 * each) * 32; };
  std::int64_t blocks = 1;
  while (2 * blocks <= largest && threads_for(packs_of(blocks), held) > most_row_threads) blocks *= 2;
  const std::int64_t each = std::max(held, (packs_of(blocks) + most_row_threads - 1) / most_row_threads);
  const std::int64_t threads = threads_for(packs_of(blocks), each);
  const bool ahead = moves.pack_bytes > 2;
  const std::int64_t shared = ahead ? threads * each * moves.pack_bytes * moves.tensors : 0;
  if (shared <= most_shared(card) && (ahead || each == held))
    return {static_cast<int>(blocks), slice(blocks), blocks, static_cast<int>(threads), static_cast<int>(each - held), shared};
  return {0, segment_columns, (columns + segment_columns - 1) / segment_columns};
}

/// Blocks of these that a card holds at once, in whole clusters. The kernel may then have all shared memory of a block.
template <class Kernel>
std::int64_t blocks_at_once(const Kernel& kernel, const cudaLaunchConfig_t& config, const DeviceFigures& card) {
  const std::int64_t cluster = config.numAttrs > 0 ? config.attrs->val.clusterDim.x : 1;
  int count = 0;
  if (cluster > 1) {
    check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "softmax");
    return cluster * std::max(count, 1);
  }
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes),
        "softmax");
  return static_cast<std::int64_t>(card.units) * std::max(count, 1);
}

/// Once in a process for each card: what a kernel may have beyond the usual.
template <class T, int V, bool backward>
void allow_all(int index, const DeviceFigures& card) {
  static std::mutex lock;
  static std::vector<bool> done;
  const std::lock_guard guard(lock);
  if (done.size() <= static_cast<std::size_t>(index)) done.resize(static_cast<std::size_t>(index) + 1);
  if (done[static_cast<std::size_t>(index)]) return;
  const auto kernel = row_kernel<T, V, backward>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most_shared(card))), "softmax");
  if (built_for_clusters && card.capability == 90)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "softmax");
  done[static_cast<std::size_t>(index)] = true;
}

template <class T, int V, bool backward>
void launch_row(const SoftmaxQuery& query, SoftmaxParams p, const Shape& shape, cudaStream_t stream) {
  const DeviceFigures& card = query.device.figures;
  const auto kernel = row_kernel<T, V, backward>;
  allow_all<T, V, backward>(query.device.device.index, card);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = shape.blocks > 1 ? 1 : 0;
  // Where blocks share a multiprocessor some load while others compute, and a row for each is faster than one after the other.
  const bool one_each = shape.blocks == 1 && shape.threads <= shared_threads;
  const std::int64_t most = one_each ? p.rows : blocks_at_once(kernel, config, card) / shape.blocks;
  p.apart = static_cast<int>(std::min(p.rows, most));
  config.gridDim = dim3(static_cast<unsigned>(p.apart) * static_cast<unsigned>(shape.blocks));
  check(cudaLaunchKernelEx(&config, kernel, p), "softmax");
}

template <class T, int V, int P, int L, bool backward>
void launch_warps(const SoftmaxParams& p, cudaStream_t stream) {
  constexpr int rows = 32 * warps / L * rows_of_lane<T>(P);
  warp_kernel<T, V, P, L, backward><<<static_cast<unsigned>((p.rows + rows - 1) / rows), 32 * warps, 0, stream>>>(p);
}

/// The first of these numbers of packs that hold a row; one pack in as few lanes as do.
template <class T, int V, bool backward, int P, int... Larger>
void launch_warps_of(const SoftmaxParams& p, cudaStream_t stream) {
  if constexpr (sizeof...(Larger) > 0)
    if (p.columns > 32 * V * P) return launch_warps_of<T, V, backward, Larger...>(p, stream);
  if constexpr (P == 1) {
    if (p.columns <= 8 * V) return launch_warps<T, V, P, 8, backward>(p, stream);
    if (p.columns <= 16 * V) return launch_warps<T, V, P, 16, backward>(p, stream);
  }
  launch_warps<T, V, P, 32, backward>(p, stream);
}

template <class T, int V, bool backward>
void launch(const SoftmaxQuery& query, const SoftmaxParams& p, const Shape& shape, cudaStream_t stream) {
  if (shape.segments == 0) {
    if constexpr (V == 1)
      launch_warps_of<T, V, backward, 2, 8, 32>(p, stream);
    else if constexpr (V == 4)
      launch_warps_of<T, V, backward, 1, 2, 4, 8>(p, stream);
    else if constexpr (V == 2)
      launch_warps_of<T, V, backward, 1, 4, 16>(p, stream);
    else
      launch_warps_of<T, V, backward, 1, 2, 4>(p, stream);
  } else if (shape.blocks > 0) {
    launch_row<T, V, backward>(query, p, shape, stream);
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

template <class T, int V, bool backward>
void launch_all(const SoftmaxQuery& query, const SoftmaxParams& all, cudaStream_t stream) {
  const Shape shape = shape_of(query.device.figures, all.columns, {V * sizeof(T), sizeof(T), backward ? 2 : 1});
  SoftmaxParams p = all;
  p.segment = shape.segment, p.segments = static_cast<int>(std::max<std::int64_t>(shape.segments, 1)), p.resident = shape.resident;
  const std::int64_t at_once = most_blocks / p.segments;
  for (std::int64_t row = 0; row < all.rows; row += at_once) {
    p.x = from_row(all.x, row, sizeof(T)), p.d = from_row(all.d, row, sizeof(T)), p.to = from_row(all.to, row, sizeof(T));
    p.rows = std::min(at_once, all.rows - row);
    launch<T, V, backward>(query, p, shape, stream);
  }
}

/// Rows are moved in the largest packs on whose multiples all of them stand: 16 bytes, 4 bytes, or elements.
template <class T, bool backward>
void launch_rows(const SoftmaxQuery& query, const SoftmaxParams& p, cudaStream_t stream) {
  const auto fits = [&](std::size_t bytes) {
    return packs(p.x, p.rows, sizeof(T), bytes) && packs(p.to, p.rows, sizeof(T), bytes) &&
           (!backward || packs(p.d, p.rows, sizeof(T), bytes));
  };
  if (fits(16))
    launch_all<T, 16 / sizeof(T), backward>(query, p, stream);
  else if (sizeof(T) == 4 || fits(4))
    launch_all<T, 4 / sizeof(T), backward>(query, p, stream);
  else
    launch_all<T, 1, backward>(query, p, stream);
}

SoftmaxPart* parts_of(const SoftmaxQuery& query, Arena& arena) {
  const auto size = static_cast<std::int64_t>(size_of(query.description.dtype));
  std::int64_t segments = 0;
  for (const std::int64_t pack_bytes : {std::int64_t{16}, std::int64_t{4}, size})
    for (const std::int64_t tensors : {1, 2}) {
      const Shape shape = shape_of(query.device.figures, query.sizes.columns, {pack_bytes, size, tensors});
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
