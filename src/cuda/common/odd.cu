// Copies between rows of any alignment, and the narrow rests of odd products.
#include "cuda/common/odd.hpp"

#include "core/visit.hpp"
#include "cuda/common/activation.cuh"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/visit_result.cuh"

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr int odd_threads = 256, move_units = 4;  // of a block, of a thread

/// Counts are of 2 bytes: all dtypes are multiples of them.
struct MoveJob {
  const std::uint16_t* from;
  std::uint16_t* to;
  std::int64_t from_stride, to_stride, from_rows, from_columns, rows, columns;
  std::uint32_t units;       // of 16 bytes in a row of `to`, at most
  std::int64_t first_block;  // its blocks come one after the other
};
struct MoveParams {
  std::array<MoveJob, most_moves> jobs;
  int count;
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

/// A thread stores 16 bytes at a time, on 16 bytes, out of the one or two units of `from` that hold them; never past a row. The
/// units of all rows stand in one line, so that every thread has as many, and all that it loads is under way at once.
__device__ inline void move_block(const MoveParams& p, std::int64_t block) {
  int j = 0;
  while (j + 1 < p.count && block >= p.jobs[j + 1].first_block) ++j;
  const MoveJob& job = p.jobs[j];
  const std::int64_t begin = (block - job.first_block) * (odd_threads * move_units), first_row = begin / job.units;
  const auto past = static_cast<std::uint32_t>(begin - first_row * job.units) + threadIdx.x;
  uint4 low[move_units], high[move_units];
  bool inside[move_units];
#pragma unroll
  for (int u = 0; u < move_units; ++u) {
    const std::uint32_t at = past + u * odd_threads;
    const std::int64_t row = first_row + at / job.units;
    const std::uint16_t* const from = job.from + row * job.from_stride;
    const int head = static_cast<int>(reinterpret_cast<std::uintptr_t>(job.to + row * job.to_stride) % 16 / 2);
    const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from - head) % 16 / 2);
    const std::int64_t element = static_cast<std::int64_t>(at % job.units) * 8 - head;
    inside[u] = row < job.from_rows && element >= shift && element - shift + (shift == 0 ? 8 : 16) <= job.from_columns;
    if (inside[u]) low[u] = *reinterpret_cast<const uint4*>(from + element - shift);
    if (inside[u] && shift != 0) high[u] = *reinterpret_cast<const uint4*>(from + element - shift + 8);
  }
#pragma unroll
  for (int u = 0; u < move_units; ++u) {
    const std::uint32_t at = past + u * odd_threads;
    const std::int64_t row = first_row + at / job.units;
    if (row >= job.rows) return;
    const std::uint16_t* const from = job.from + row * job.from_stride;
    std::uint16_t* const to = job.to + row * job.to_stride;
    const int head = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) % 16 / 2);
    const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from - head) % 16 / 2);
    const std::int64_t element = static_cast<std::int64_t>(at % job.units) * 8 - head;
    if (inside[u])
      *reinterpret_cast<uint4*>(to + element) = shifted(low[u], high[u], shift);
    else
      move_edge(from, to, element, row < job.from_rows ? job.from_columns : 0, job.columns);
  }
}

struct NoRest {
  __device__ void operator()(std::int64_t) const {}
};

/// Copies, and a rest that has nothing to do with them in the first blocks: one launch, and neither waits for the other.
template <class Rest>
__global__ void __launch_bounds__(odd_threads, std::is_same_v<Rest, NoRest> ? 4 : 3)
    odd_kernel(const __grid_constant__ MoveParams p, const __grid_constant__ Rest rest, int rest_blocks) {
  if (blockIdx.x < rest_blocks)
    rest(blockIdx.x);
  else
    move_block(p, static_cast<std::int64_t>(blockIdx.x) - rest_blocks);
}

Plane plane_of(const Matrix& m) { return {m.data, m.stride, m.step}; }

struct NarrowParams {
  Plane a, b, bias, c, z;
  std::int64_t rows, k;
  int columns;
  bool b_packs;  // its columns lie side by side on 16 bytes
  Activation activation;
};

constexpr int narrow_warps = odd_threads / 32;

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

/// A warp for each row; a few loads of it are under way before the first is multiplied.
template <class T, class O, int V>
struct Narrow {
  NarrowParams p;

  __device__ void operator()(std::int64_t block) const {
    constexpr int most = static_cast<int>(narrow_columns), together = 4;
    const int lane = threadIdx.x % 32;
    const std::int64_t row = block * narrow_warps + threadIdx.x / 32;
    if (row >= p.rows) return;
    float sums[most] = {};
    for (std::int64_t first = lane * V; first < p.k; first += 32 * V * together) {
      Pack<T, V> left[together];
#pragma unroll
      for (int i = 0; i < together; ++i)
        if (first + i * 32 * V < p.k) left[i] = load_pack<T, V>(p.a, row, first + i * 32 * V, p.k);
#pragma unroll
      for (int j = 0; j < most; ++j) {
        if (j >= p.columns) break;
#pragma unroll
        for (int i = 0; i < together; ++i) {
          if (first + i * 32 * V >= p.k) break;
          float right[V];
          load_column<T, V>(p, j, first + i * 32 * V, right);
#pragma unroll
          for (int v = 0; v < V; ++v) sums[j] = fmaf(left[i].value(v), right[v], sums[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < most; ++j) {
      if (j >= p.columns) break;
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) sums[j] += __shfl_xor_sync(0xffffffffU, sums[j], apart);
      if (lane == j) store(row, j, sums[j]);
    }
  }
  __device__ void store(std::int64_t row, int j, float sum) const {
    const O z = narrow<O>(sum + (p.bias.data != nullptr ? widen(static_cast<const T*>(p.bias.data)[j * p.bias.step]) : 0));
    if (p.z.data != nullptr) static_cast<O*>(const_cast<void*>(p.z.data))[row * p.z.stride + j * p.z.step] = z;
    static_cast<O*>(const_cast<void*>(p.c.data))[row * p.c.stride + j * p.c.step] = narrow<O>(activate(p.activation, widen(z)));
  }
};

struct WeightedParams {
  Plane a, b, c, sums;
  std::int64_t rows, columns;
  int few;
  bool accumulate;
};

/// A block for V columns of b and two of a, a thread for every 256th row. The last blocks sum a itself: their b is 1.
template <class T, class O, int V>
struct Weighted {
  static constexpr int pair = 2;
  WeightedParams p;

  std::int64_t groups() const { return (p.columns + V - 1) / V + (p.sums.data != nullptr ? 1 : 0); }
  std::int64_t blocks() const { return groups() * ((p.few + pair - 1) / pair); }

  __device__ void operator()(std::int64_t block) const {
    constexpr int together = 8;
    const int pairs = (p.few + pair - 1) / pair, j = static_cast<int>(block % pairs) * pair;
    const std::int64_t column = block / pairs * V;
    const bool ones = column >= p.columns;
    float sums[pair][V] = {};
    for (std::int64_t first = threadIdx.x; first < p.rows; first += odd_threads * together) {
      Pack<T, V> right[together];
      float left[together][pair];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const std::int64_t row = first + i * odd_threads;
        if (!ones && row < p.rows) right[i] = load_pack<T, V>(p.b, row, column, p.columns);
#pragma unroll
        for (int q = 0; q < pair; ++q)
          left[i][q] =
              row < p.rows && j + q < p.few ? widen(static_cast<const T*>(p.a.data)[row * p.a.stride + (j + q) * p.a.step]) : 0;
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        if (first + i * odd_threads >= p.rows) break;
#pragma unroll
        for (int q = 0; q < pair; ++q)
#pragma unroll
          for (int v = 0; v < V; ++v) sums[q][v] = fmaf(left[i][q], ones ? 1.0F : right[i].value(v), sums[q][v]);
      }
    }
    finish(column, j, sums);
  }
  /// Adds the sums of all threads, by warps and then in shared memory, in an order that is fixed.
  __device__ void finish(std::int64_t first, int j, float (&sums)[pair][V]) const {
    __shared__ float parts[narrow_warps][pair * V];
#pragma unroll
    for (int q = 0; q < pair; ++q)
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sums[q][v] += __shfl_xor_sync(0xffffffffU, sums[q][v], apart);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][q * V + v] = sums[q][v];
      }
    __syncthreads();
    if (threadIdx.x >= pair * V) return;
    const int row = j + static_cast<int>(threadIdx.x) / V, v = static_cast<int>(threadIdx.x) % V;
    const bool ones = first >= p.columns;
    if (row >= p.few || (ones ? v > 0 : first + v >= p.columns)) return;
    float sum = 0;
    for (const auto& part : parts) sum += part[threadIdx.x];
    O* const to = ones ? static_cast<O*>(const_cast<void*>(p.sums.data)) + row * p.sums.step
                       : static_cast<O*>(const_cast<void*>(p.c.data)) + row * p.c.stride + (first + v) * p.c.step;
    *to = narrow<O>(p.accumulate ? widen(*to) + sum : sum);
  }
};

struct TermsParams {
  Plane wide, a, b, c;
  std::int64_t rows, columns;
  int few;
  bool c_packs;
};

constexpr int terms_rows = 8, terms_columns = 4;  // of a thread

/// A thread has all that it loads of f32 under way before it adds the first term.
template <class T>
__global__ void __launch_bounds__(odd_threads, 3) terms_kernel(const __grid_constant__ TermsParams p) {
  constexpr int V = terms_columns;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * odd_threads + threadIdx.x) * V;
  if (column >= p.columns) return;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * terms_rows; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.y) * terms_rows) {
    Pack<float, V> sums[terms_rows];
#pragma unroll
    for (int i = 0; i < terms_rows; ++i)
      if (first + i < p.rows) sums[i] = load_pack<float, V>(p.wide, first + i, column, p.columns);
    for (int j = 0; j < p.few; ++j) {
      float left[terms_rows], right[V];
      const T* const row = static_cast<const T*>(p.b.data) + j * p.b.stride;
#pragma unroll
      for (int v = 0; v < V; ++v) right[v] = column + v < p.columns ? widen(row[(column + v) * p.b.step]) : 0;
      const T* const a = static_cast<const T*>(p.a.data) + j * p.a.step;
#pragma unroll
      for (int i = 0; i < terms_rows; ++i) left[i] = first + i < p.rows ? widen(a[(first + i) * p.a.stride]) : 0;
#pragma unroll
      for (int i = 0; i < terms_rows; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v) sums[i].at[v] = fmaf(left[i], right[v], sums[i].at[v]);
    }
#pragma unroll
    for (int i = 0; i < terms_rows; ++i) {
      const std::int64_t row = first + i;
      if (row >= p.rows) break;
      if (p.c_packs) {
        store_pack<T, V>(p.c, row, column, p.columns, Pack<T, V>::of(sums[i].at));
        continue;
      }
      T* const to = static_cast<T*>(const_cast<void*>(p.c.data)) + row * p.c.stride;
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (column + v < p.columns) to[(column + v) * p.c.step] = narrow<T>(sums[i].at[v]);
    }
  }
}

constexpr std::int64_t most_grid_rows = 32768;

struct PlannedMoves {
  MoveParams params{};
  std::int64_t blocks = 0;
};
PlannedMoves planned(std::span<const Move> moves) {
  PlannedMoves out;
  for (const Move& m : moves) {
    if (m.to.rows == 0 || m.to.columns == 0) continue;
    const auto halves = static_cast<std::int64_t>(size_of(m.to.dtype) / 2);
    const std::int64_t columns = m.to.columns * halves, stride = m.to.stride * halves;
    const bool whole = reinterpret_cast<std::uintptr_t>(m.to.data) % 16 == 0 && (m.to.rows == 1 || stride % 8 == 0);
    const std::int64_t units = (columns + (whole ? 7 : 14)) / 8;
    out.params.jobs[static_cast<std::size_t>(out.params.count++)] = {.from = static_cast<const std::uint16_t*>(m.from.data),
                                                                     .to = static_cast<std::uint16_t*>(m.to.data),
                                                                     .from_stride = m.from.stride * halves,
                                                                     .to_stride = stride,
                                                                     .from_rows = m.from.rows,
                                                                     .from_columns = m.from.columns * halves,
                                                                     .rows = m.to.rows,
                                                                     .columns = columns,
                                                                     .units = static_cast<std::uint32_t>(units),
                                                                     .first_block = out.blocks};
    out.blocks += (m.to.rows * units + odd_threads * move_units - 1) / (odd_threads * move_units);
  }
  return out;
}

template <class Rest>
void launch_odd(const Rest& rest, std::int64_t rest_blocks, std::span<const Move> moves, cudaStream_t stream) {
  const PlannedMoves planned_moves = planned(moves);
  if (rest_blocks + planned_moves.blocks == 0) return;
  odd_kernel<<<static_cast<unsigned>(rest_blocks + planned_moves.blocks), odd_threads, 0, stream>>>(planned_moves.params, rest,
                                                                                                    static_cast<int>(rest_blocks));
  check_launch("copies and rests of an odd product");
}

}  // namespace

bool can_move(const Matrix& from, const Matrix& to) {
  return from.dtype == to.dtype && (from.step == 1 || from.columns <= 1) && (to.step == 1 || to.columns <= 1);
}

void move(std::span<const Move> moves, cudaStream_t stream) { launch_odd(NoRest{}, 0, moves, stream); }

void multiply_narrow(const NarrowProduct& product, std::span<const Move> moves, cudaStream_t stream) {
  const std::size_t size = size_of(product.a.dtype);
  const Matrix columns = product.b.transposed();
  const NarrowParams p{.a = plane_of(product.a),
                       .b = plane_of(product.b),
                       .bias = plane_of(product.bias),
                       .c = plane_of(product.c),
                       .z = plane_of(product.z),
                       .rows = product.c.columns > 0 ? product.c.rows : 0,
                       .k = product.a.columns,
                       .columns = static_cast<int>(product.c.columns),
                       .b_packs = packs(plane_of(columns), columns.rows, size, 16),
                       .activation = product.activation};
  const std::int64_t blocks = (p.rows + narrow_warps - 1) / narrow_warps;
  visit_result(product.a.dtype, product.c.dtype, [&](auto element, auto result) {
    using T = decltype(element);
    using O = decltype(result);
    if (packs(p.a, p.rows, size, 16))
      launch_odd(Narrow<T, O, 16 / sizeof(T)>{p}, blocks, moves, stream);
    else
      launch_odd(Narrow<T, O, 1>{p}, blocks, moves, stream);
  });
}

void sum_weighted(const WeightedSums& sums, std::span<const Move> moves, cudaStream_t stream) {
  const WeightedParams p{.a = plane_of(sums.a),
                         .b = plane_of(sums.b),
                         .c = plane_of(sums.c),
                         .sums = plane_of(sums.sums),
                         .rows = sums.b.rows,
                         .columns = sums.c.columns,
                         .few = static_cast<int>(sums.c.rows),
                         .accumulate = sums.accumulate};
  visit_result(sums.b.dtype, sums.c.dtype, [&](auto element, auto result) {
    using T = decltype(element);
    using O = decltype(result);
    const auto launch = [&](const auto& rest) { launch_odd(rest, rest.blocks(), moves, stream); };
    if (packs(p.b, p.rows, sizeof(T), 16))
      launch(Weighted<T, O, 16 / sizeof(T)>{p});
    else
      launch(Weighted<T, O, 1>{p});
  });
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
  constexpr std::int64_t wide = odd_threads * terms_columns;
  const dim3 grid(static_cast<unsigned>((c.columns + wide - 1) / wide),
                  static_cast<unsigned>(std::min((c.rows + terms_rows - 1) / terms_rows, most_grid_rows)));
  visit_storage(c.dtype, [&](auto element) { terms_kernel<Stored<decltype(element)>><<<grid, odd_threads, 0, stream>>>(p); });
  check_launch("narrow terms");
}

}  // namespace everglow::cuda
