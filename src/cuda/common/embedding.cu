// Embedding on a card: copies of rows, and a gradient in which each row of the table is written once, from its uses in ascending
// order. No atomics on sums, so the same bits each time. A row of many uses is summed in parts that begin at fixed places.
#include "cuda/common/device.hpp"
#include "cuda/common/index_list.cuh"
#include "cuda/common/index_uses.hpp"
#include "cuda/common/row_blocks.cuh"
#include "cuda/common/rows.hpp"

#include "core/visit.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr int threads = row_block_threads;
constexpr std::int64_t part = 128;  // uses that one block sums for a row with many

struct StatusParams {
  IndexList indices;
  std::int64_t n, vocabulary;
  std::uint32_t* status;
};

__global__ void __launch_bounds__(threads) status_kernel(const __grid_constant__ StatusParams p) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  bool bad = false;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < p.n; i += step) {
    const std::int64_t index = p.indices[i];
    bad = bad || index < 0 || index >= p.vocabulary;
  }
  if (bad) note(p.status, status_indices);
}

void report_bad_indices(const EmbeddingQuery& query, const ConstTensorView& indices, const TensorView& status,
                        cudaStream_t stream) {
  const std::int64_t n = indices.size(0);
  if (!status.given() || n == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((n + threads - 1) / threads, 1024));
  status_kernel<<<blocks, threads, 0, stream>>>({.indices = index_list_of(indices),
                                                 .n = n,
                                                 .vocabulary = query.description.vocabulary,
                                                 .status = static_cast<std::uint32_t*>(status.data)});
}

/// The row of the table that a row of y is; an index outside the table gives zeros.
struct RowOfTable {
  IndexList indices;
  std::int64_t vocabulary;
  __device__ std::int64_t operator()(std::int64_t n) const {
    const std::int64_t index = indices[n];
    return index < vocabulary ? index : -1;
  }
};

void forward(const EmbeddingQuery& query, const EmbeddingForward& t, void*, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  const cudaStream_t on = stream_of(stream);
  report_bad_indices(query, t.indices, t.status, on);
  const GatherParams<RowOfTable> p{.source = {.indices = index_list_of(t.indices), .vocabulary = query.description.vocabulary},
                                   .from = {t.table.data, t.table.strides[0]},
                                   .to = {t.y.data, t.y.strides[0]},
                                   .rows = t.y.size(0),
                                   .columns = t.y.size(1)};
  gather_rows(p, static_cast<std::int64_t>(size_of(query.description.dtype)), on);
  check_launch("embedding.forward");
}

struct Scratch {
  IndexUsesRooms uses;
  float* parts = nullptr;  // [indices / part, width]
};

Scratch scratch_of(const EmbeddingQuery& query, Arena& arena) {
  Scratch s;
  s.uses = index_uses_rooms(query.sizes.indices, query.description.vocabulary, arena);
  s.parts = arena.take<float>(query.sizes.indices / part * query.description.width);
  return s;
}

struct BackwardParams {
  IndexList indices;
  Plane dy, dtable, parts;
  IndexUses uses;
  std::int64_t n, width, vocabulary, padding;
  bool accumulate;
};

/// Adds the rows of dy that stand at [begin, end) of the order, one after the other.
template <class T, int V>
__device__ void add_uses(const BackwardParams& p, std::int64_t begin, std::int64_t end, std::int64_t column, float (&sums)[V]) {
#pragma unroll 4
  for (std::int64_t i = begin; i < end; ++i) {
    const Pack<T, V> values = load_pack<T, V>(p.dy, p.uses.order[i], column, p.width);
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += values.value(v);
  }
}

/// The sums of those parts of the order that belong to one row of the table as a whole.
template <class T, int V>
__global__ void __launch_bounds__(threads) part_kernel(const __grid_constant__ BackwardParams p) {
  for (std::int64_t at = first_row(); at < p.n / part; at += rows_at_once()) {
    const std::int64_t begin = at * part, end = begin + part;
    const std::int64_t row = p.indices[p.uses.order[begin]];
    const bool used = row >= 0 && row < p.vocabulary && row != p.padding;
    if (!used || p.indices[p.uses.order[end - 1]] != row) continue;
    for (std::int64_t column = threadIdx.x * V; column < p.width; column += blockDim.x * V) {
      float sums[V] = {};
      add_uses<T, V>(p, begin, end, column, sums);
      store_pack<float, V>(p.parts, at, column, p.width, Pack<float, V>::of(sums));
    }
  }
}

template <class T, class Out, int V>
__global__ void __launch_bounds__(threads) backward_kernel(const __grid_constant__ BackwardParams p) {
  for (std::int64_t row = first_row(); row < p.vocabulary; row += rows_at_once()) {
    const std::int64_t begin = p.uses.first[row];
    if (begin < 0 && p.accumulate) continue;
    const std::int64_t end = begin < 0 ? begin : p.uses.last[row];
    const std::int64_t whole = (begin + part - 1) / part, head = whole * part < end ? whole * part : end;
    for (std::int64_t column = threadIdx.x * V; column < p.width; column += blockDim.x * V) {
      float sums[V] = {};
      std::int64_t at = whole;
      if (begin >= 0) {
        add_uses<T, V>(p, begin, head, column, sums);
        for (; (at + 1) * part <= end; ++at) {
          const Pack<float, V> values = load_pack<float, V>(p.parts, at, column, p.width);
#pragma unroll
          for (int v = 0; v < V; ++v) sums[v] += values.value(v);
        }
        add_uses<T, V>(p, at * part, end, column, sums);
      }
      if (p.accumulate) {
        const Pack<Out, V> before = load_pack<Out, V>(p.dtable, row, column, p.width);
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v] += before.value(v);
      }
      store_pack<Out, V>(p.dtable, row, column, p.width, Pack<Out, V>::of(sums));
    }
  }
}

template <class T, class Out, int V>
void launch_backward_packs(const BackwardParams& p, cudaStream_t stream) {
  const std::int64_t columns = (p.width + V - 1) / V;
  if (p.n >= part) {
    const RowBlocks parts(p.n / part, columns);
    part_kernel<T, V><<<parts.grid, parts.block, 0, stream>>>(p);
  }
  const RowBlocks rows(p.vocabulary, columns);
  backward_kernel<T, Out, V><<<rows.grid, rows.block, 0, stream>>>(p);
}

template <class T, class Out>
void launch_backward(const BackwardParams& p, cudaStream_t stream) {
  constexpr int V = 4;
  const bool whole = packs(p.dy, p.n, sizeof(T), V * sizeof(T)) && packs(p.dtable, p.vocabulary, sizeof(Out), V * sizeof(Out)) &&
                     packs(p.parts, p.n / part, sizeof(float), V * sizeof(float));
  if (whole)
    launch_backward_packs<T, Out, V>(p, stream);
  else
    launch_backward_packs<T, Out, 1>(p, stream);
}

void backward(const EmbeddingQuery& query, const EmbeddingBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  const cudaStream_t on = stream_of(stream);
  const EmbeddingDescription& d = query.description;
  report_bad_indices(query, t.indices, t.status, on);
  if (d.vocabulary > 0 && d.width > 0) {
    Arena arena(workspace);
    const Scratch s = scratch_of(query, arena);
    const BackwardParams p{
        .indices = index_list_of(t.indices),
        .dy = {t.dy.data, t.dy.strides[0]},
        .dtable = {t.dtable.data, t.dtable.strides[0]},
        .parts = {s.parts, d.width},
        .uses = find_index_uses({.indices = t.indices, .vocabulary = d.vocabulary, .padding = d.padding_index}, s.uses, on),
        .n = t.indices.size(0),
        .width = d.width,
        .vocabulary = d.vocabulary,
        .padding = d.padding_index,
        .accumulate = t.accumulate};
    visit_storage(d.dtype, [&](auto element) {
      using T = Stored<decltype(element)>;
      if (t.dtable.dtype == DType::f32)
        launch_backward<T, float>(p, on);
      else
        launch_backward<T, T>(p, on);
    });
  }
  check_launch("embedding.backward");
}

}  // namespace

const EmbeddingRow embedding{.name = "cuda.embedding",
                             .accepts = accept_storage_on_card<EmbeddingQuery>,
                             .footprint = arena_footprint<scratch_of, EmbeddingQuery>,
                             .forward = forward,
                             .backward = backward};

}  // namespace everglow::cuda
