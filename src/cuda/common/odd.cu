// Copies between rows of any alignment, and the narrow rests of odd products.
#include "cuda/common/odd.hpp"

#include "core/visit.hpp"
#include "cuda/common/activation.cuh"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/visit_result.cuh"

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr int move_threads = 256, move_units = 4;

/// Counts are of 2 bytes: all dtypes are multiples of them.
struct MoveJob {
  const std::uint16_t* from;
  std::uint16_t* to;
  std::int64_t from_stride, to_stride, from_rows, from_columns, rows, columns;
};
struct MoveParams {
  std::array<MoveJob, most_moves> jobs;
};

/// Eight elements of which the first is number `shift` of `low` and `high` together.
__device__ inline uint4 shifted(const uint4& low, const uint4& high, int shift) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  std::uint32_t at[5];
  switch (shift / 2) {  // the same for all of a row, and indices that are constants keep the words in registers
    case 0:
#pragma unroll
      for (int i = 0; i < 5; ++i) at[i] = words[i];
      break;
    case 1:
#pragma unroll
      for (int i = 0; i < 5; ++i) at[i] = words[i + 1];
      break;
    case 2:
#pragma unroll
      for (int i = 0; i < 5; ++i) at[i] = words[i + 2];
      break;
    default:
#pragma unroll
      for (int i = 0; i < 5; ++i) at[i] = words[i + 3];
  }
  if (shift % 2 == 0) return {at[0], at[1], at[2], at[3]};
  return {__funnelshift_r(at[0], at[1], 16), __funnelshift_r(at[1], at[2], 16), __funnelshift_r(at[2], at[3], 16),
          __funnelshift_r(at[3], at[4], 16)};
}

/// The elements [begin, begin + 8) of a row of `to`, one by one: those in the row, zeros past what there is of `from`.
__device__ inline void move_edge(const std::uint16_t* from, std::uint16_t* to, std::int64_t begin, std::int64_t there,
                                 std::int64_t columns) {
#pragma unroll
  for (int v = 0; v < 8; ++v)
    if (const std::int64_t e = begin + v; e >= 0 && e < columns) to[e] = e < there ? from[e] : std::uint16_t{0};
}

/// A thread stores 16 bytes at a time, on 16 bytes, out of the one or two units of `from` that hold them; never past a row.
__global__ void __launch_bounds__(move_threads) move_kernel(const __grid_constant__ MoveParams p) {
  const MoveJob& job = p.jobs[blockIdx.z];
  const std::int64_t rows_at_once = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * move_units * blockDim.x + threadIdx.x;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < job.rows; row += rows_at_once) {
    const std::uint16_t* const from = job.from + row * job.from_stride;
    std::uint16_t* const to = job.to + row * job.to_stride;
    const std::int64_t there = row < job.from_rows ? job.from_columns : 0;
    const int head = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) % 16 / 2);
    const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from - head) % 16 / 2);
    const std::int64_t units = (head + job.columns + 7) / 8;
    uint4 low[move_units], high[move_units];
    bool inside[move_units];
#pragma unroll
    for (int u = 0; u < move_units; ++u) {
      const std::int64_t begin = (first + u * blockDim.x) * 8 - head;
      inside[u] = begin >= shift && begin - shift + (shift == 0 ? 8 : 16) <= there;
      if (inside[u]) low[u] = *reinterpret_cast<const uint4*>(from + begin - shift);
      if (inside[u] && shift != 0) high[u] = *reinterpret_cast<const uint4*>(from + begin - shift + 8);
    }
#pragma unroll
    for (int u = 0; u < move_units; ++u) {
      const std::int64_t unit = first + u * blockDim.x, begin = unit * 8 - head;
      if (unit >= units) break;
      if (inside[u])
        *reinterpret_cast<uint4*>(to + begin) = shifted(low[u], high[u], shift);
      else
        move_edge(from, to, begin, there, job.columns);
    }
  }
}

Plane plane_of(const Matrix& m) { return {m.data, m.stride, m.step}; }

struct NarrowParams {
  Plane a, b, bias, c, z;
  std::int64_t rows, k;
  int columns;
  bool b_packs;  // its columns lie side by side on 16 bytes
  Activation activation;
};

constexpr int narrow_warps = 8;

/// V elements of column `column` of b from row k on, zeros past the last.
template <class T, int V>
__device__ inline void load_column(const NarrowParams& p, int column, std::int64_t k, float (&to)[V]) {
  if (V > 1 && p.b_packs) {
    const Pack<T, V> pack = load_pack<T, V>({p.b.data, p.b.step, 1}, column, k, p.k);
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = pack.value(v);
    return;
  }
  const T* const b = static_cast<const T*>(p.b.data) + column * p.b.step;
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = k + v < p.k ? widen(b[(k + v) * p.b.stride]) : 0;
}

template <class T, class O, int V>
__global__ void __launch_bounds__(32 * narrow_warps) narrow_kernel(const __grid_constant__ NarrowParams p) {
  constexpr int most = static_cast<int>(narrow_columns);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * narrow_warps + threadIdx.y;
  if (row >= p.rows) return;
  float sums[most] = {};
#pragma unroll 4
  for (std::int64_t k = threadIdx.x * V; k < p.k; k += 32 * V) {
    const Pack<T, V> left = load_pack<T, V>(p.a, row, k, p.k);
#pragma unroll
    for (int j = 0; j < most; ++j) {
      if (j >= p.columns) break;
      float right[V];
      load_column<T, V>(p, j, k, right);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[j] = fmaf(left.value(v), right[v], sums[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < most; ++j)
    for (int lane = 16; lane > 0; lane /= 2) sums[j] += __shfl_xor_sync(0xffffffffU, sums[j], lane);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int j = 0; j < most; ++j) {
    if (j >= p.columns) break;
    O z = narrow<O>(sums[j] + (p.bias.data != nullptr ? widen(static_cast<const T*>(p.bias.data)[j * p.bias.step]) : 0));
    if (p.z.data != nullptr) static_cast<O*>(const_cast<void*>(p.z.data))[row * p.z.stride + j * p.z.step] = z;
    static_cast<O*>(const_cast<void*>(p.c.data))[row * p.c.stride + j * p.c.step] = narrow<O>(activate(p.activation, widen(z)));
  }
}

constexpr int weighted_columns = 16, weighted_lanes = 64;  // of a block: columns are 32 bytes, what memory hands out

struct WeightedParams {
  Plane a, b, c, sums;
  std::int64_t rows, columns;
  int few;
  bool accumulate;
};

/// A thread sums one column of b, times each of the few of a, over every 64th row.
template <class T, class O>
__global__ void __launch_bounds__(weighted_columns* weighted_lanes) weighted_kernel(const __grid_constant__ WeightedParams p) {
  constexpr int most = static_cast<int>(narrow_columns);
  __shared__ float parts[weighted_lanes][weighted_columns + 1];
  const int x = threadIdx.x, lane = threadIdx.y;
  // One block more than there are of columns adds up a itself: its b is 1.
  const bool ones = blockIdx.x == gridDim.x - 1;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * weighted_columns + x;
  const bool mine = ones ? x == 0 && p.sums.data != nullptr : column < p.columns;
  if (ones && p.sums.data == nullptr) return;
  float sums[most] = {};
  if (mine) {
    const T* const a = static_cast<const T*>(p.a.data);
    const T* const b = static_cast<const T*>(p.b.data) + (ones ? 0 : column * p.b.step);
#pragma unroll 8
    for (std::int64_t row = lane; row < p.rows; row += weighted_lanes) {
      const float right = ones ? 1.0F : widen(b[row * p.b.stride]);
#pragma unroll
      for (int j = 0; j < most; ++j)
        if (j < p.few) sums[j] = fmaf(widen(a[row * p.a.stride + j * p.a.step]), right, sums[j]);
    }
  }
  for (int j = 0; j < p.few; ++j) {
    __syncthreads();
    parts[lane][x] = sums[0];
#pragma unroll
    for (int i = 0; i + 1 < most; ++i) sums[i] = sums[i + 1];
    __syncthreads();
    if (lane != 0 || !mine) continue;
    float sum = 0;
    for (int i = 0; i < weighted_lanes; ++i) sum += parts[i][x];
    O* const to = ones ? static_cast<O*>(const_cast<void*>(p.sums.data)) + j * p.sums.step
                       : static_cast<O*>(const_cast<void*>(p.c.data)) + j * p.c.stride + column * p.c.step;
    *to = narrow<O>(p.accumulate ? widen(*to) + sum : sum);
  }
}

struct TermsParams {
  Plane wide, a, b, c;
  std::int64_t rows, columns;
  int few;
  bool c_packs;
};

constexpr int terms_threads = 128, terms_rows = 8, terms_columns = 4;  // of a block, of a thread, of a thread

/// A thread has its columns of b in registers and goes down some rows.
template <class T>
__global__ void __launch_bounds__(terms_threads) terms_kernel(const __grid_constant__ TermsParams p) {
  constexpr int most = static_cast<int>(narrow_columns), V = terms_columns;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * terms_threads + threadIdx.x) * V;
  if (column >= p.columns) return;
  float b[most][V];
#pragma unroll
  for (int j = 0; j < most; ++j) {
    const T* const row = static_cast<const T*>(p.b.data) + j * p.b.stride;
#pragma unroll
    for (int v = 0; v < V; ++v) b[j][v] = j < p.few && column + v < p.columns ? widen(row[(column + v) * p.b.step]) : 0;
  }
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * terms_rows; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.y) * terms_rows) {
    Pack<float, V> wide[terms_rows];
#pragma unroll
    for (int i = 0; i < terms_rows; ++i)
      if (first + i < p.rows) wide[i] = load_pack<float, V>(p.wide, first + i, column, p.columns);
#pragma unroll
    for (int i = 0; i < terms_rows; ++i) {
      const std::int64_t row = first + i;
      if (row >= p.rows) break;
      const T* const a = static_cast<const T*>(p.a.data) + row * p.a.stride;
      float sums[V];
#pragma unroll
      for (int v = 0; v < V; ++v) sums[v] = wide[i].at[v];
#pragma unroll
      for (int j = 0; j < most; ++j) {
        if (j >= p.few) break;
        const float left = widen(a[j * p.a.step]);
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v] = fmaf(left, b[j][v], sums[v]);
      }
      if (p.c_packs) {
        store_pack<T, V>(p.c, row, column, p.columns, Pack<T, V>::of(sums));
        continue;
      }
      T* const to = static_cast<T*>(const_cast<void*>(p.c.data)) + row * p.c.stride;
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (column + v < p.columns) to[(column + v) * p.c.step] = narrow<T>(sums[v]);
    }
  }
}

constexpr std::int64_t most_grid_rows = 32768;

}  // namespace

bool can_move(const Matrix& from, const Matrix& to) {
  return from.dtype == to.dtype && (from.step == 1 || from.columns <= 1) && (to.step == 1 || to.columns <= 1);
}

void move(std::span<const Move> moves, cudaStream_t stream) {
  MoveParams p{};
  std::int64_t rows = 0, units = 0;
  unsigned count = 0;
  for (const Move& m : moves) {
    if (m.to.rows == 0 || m.to.columns == 0) continue;
    const auto halves = static_cast<std::int64_t>(size_of(m.to.dtype) / 2);
    p.jobs[count++] = {.from = static_cast<const std::uint16_t*>(m.from.data),
                       .to = static_cast<std::uint16_t*>(m.to.data),
                       .from_stride = m.from.stride * halves,
                       .to_stride = m.to.stride * halves,
                       .from_rows = m.from.rows,
                       .from_columns = m.from.columns * halves,
                       .rows = m.to.rows,
                       .columns = m.to.columns * halves};
    rows = std::max(rows, m.to.rows), units = std::max(units, m.to.columns * halves / 8 + 2);
  }
  if (count == 0) return;
  int x = 32;
  while (x < move_threads && x * move_units < units) x *= 2;
  const int y = move_threads / x;
  const dim3 grid(static_cast<unsigned>((units + x * move_units - 1) / (x * move_units)),
                  static_cast<unsigned>(std::min<std::int64_t>((rows + y - 1) / y, most_grid_rows)), count);
  move_kernel<<<grid, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 0, stream>>>(p);
  check_launch("move");
}

void multiply_narrow(const NarrowProduct& product, cudaStream_t stream) {
  if (product.c.rows == 0 || product.c.columns == 0) return;
  const std::size_t size = size_of(product.a.dtype);
  const Matrix columns = product.b.transposed();
  const NarrowParams p{.a = plane_of(product.a),
                       .b = plane_of(product.b),
                       .bias = plane_of(product.bias),
                       .c = plane_of(product.c),
                       .z = plane_of(product.z),
                       .rows = product.c.rows,
                       .k = product.a.columns,
                       .columns = static_cast<int>(product.c.columns),
                       .b_packs = packs(plane_of(columns), columns.rows, size, 16),
                       .activation = product.activation};
  visit_result(product.a.dtype, product.c.dtype, [&](auto element, auto result) {
    using T = decltype(element);
    using O = decltype(result);
    const auto blocks = static_cast<unsigned>((p.rows + narrow_warps - 1) / narrow_warps);
    if (packs(p.a, p.rows, size, 16))
      narrow_kernel<T, O, 16 / sizeof(T)><<<blocks, dim3(32, narrow_warps), 0, stream>>>(p);
    else
      narrow_kernel<T, O, 1><<<blocks, dim3(32, narrow_warps), 0, stream>>>(p);
  });
  check_launch("narrow product");
}

void sum_weighted(const WeightedSums& sums, cudaStream_t stream) {
  if (sums.c.rows == 0) return;
  const WeightedParams p{.a = plane_of(sums.a),
                         .b = plane_of(sums.b),
                         .c = plane_of(sums.c),
                         .sums = plane_of(sums.sums),
                         .rows = sums.b.rows,
                         .columns = sums.c.columns,
                         .few = static_cast<int>(sums.c.rows),
                         .accumulate = sums.accumulate};
  const std::int64_t blocks = (p.columns + weighted_columns - 1) / weighted_columns + 1;
  visit_result(sums.b.dtype, sums.c.dtype, [&](auto element, auto result) {
    weighted_kernel<decltype(element), decltype(result)>
        <<<static_cast<unsigned>(blocks), dim3(weighted_columns, weighted_lanes), 0, stream>>>(p);
  });
  check_launch("weighted sums");
}

void add_narrow(const NarrowTerms& terms, cudaStream_t stream) {
  const Matrix& c = terms.c;
  if (c.rows == 0 || c.columns == 0) return;
  const std::size_t size = size_of(c.dtype);
  const TermsParams p{.wide = plane_of(terms.wide),
                      .a = plane_of(terms.a),
                      .b = plane_of(terms.b),
                      .c = plane_of(c),
                      .rows = c.rows,
                      .columns = c.columns,
                      .few = static_cast<int>(terms.a.columns),
                      .c_packs = packs(plane_of(c), c.rows, size, terms_columns * size)};
  constexpr std::int64_t wide = terms_threads * terms_columns;
  const dim3 grid(static_cast<unsigned>((c.columns + wide - 1) / wide),
                  static_cast<unsigned>(std::min((c.rows + terms_rows - 1) / terms_rows, most_grid_rows)));
  visit_storage(c.dtype, [&](auto element) { terms_kernel<Stored<decltype(element)>><<<grid, terms_threads, 0, stream>>>(p); });
  check_launch("narrow terms");
}

}  // namespace everglow::cuda
