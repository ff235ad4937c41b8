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

/// Eight elements of which the first is number `shift` of `low` and `high` together. Without branches, and small: a kernel of a few
/// microseconds waits for its own instructions, which nobody has asked for before.
__device__ inline uint4 shifted(const uint4& low, const uint4& high, int shift) {
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = (shift & 4) != 0 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = (shift & 2) != 0 ? words[i + 1] : words[i];
  const int bits = (shift & 1) * 16;
  return {__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
          __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
}

/// The elements [begin, begin + 8) of a row of `to`, one by one: those in the row, zeros past what there is of `from`.
__device__ inline void move_edge(const std::uint16_t* from, std::uint16_t* to, std::int64_t begin, std::int64_t there,
                                 std::int64_t columns) {
#pragma unroll 1
  for (std::int64_t e = begin < 0 ? 0 : begin; e < begin + 8 && e < columns; ++e) to[e] = e < there ? from[e] : std::uint16_t{0};
}

/// A thread stores 16 bytes at a time, on 16 bytes, out of the one or two units of `from` that hold them; never past a row. The
/// units of all rows stand in one line, so that every thread has as many, and all that it loads is under way at once.
__device__ inline void move_block(const MoveParams& p, std::int64_t block) {
  int j = 0;
#pragma unroll 1
  while (j + 1 < p.count && block >= p.jobs[j + 1].first_block) ++j;
  const MoveJob& job = p.jobs[j];
  const std::uint32_t units = job.units;
  const std::int64_t begin = (block - job.first_block) * (odd_threads * move_units), first_row = begin / units;
  const std::uint32_t past = static_cast<std::uint32_t>(begin - first_row * units) + threadIdx.x;
  uint4 low[move_units], high[move_units];
  std::int64_t row[move_units], element[move_units];
  int shift[move_units];  // -1: not all of the unit lies in the row
#pragma unroll
  for (int u = 0; u < move_units; ++u) {
    const std::uint32_t at = past + u * odd_threads, below = at / units;
    row[u] = first_row + below;
    const std::uint16_t* const from = job.from + row[u] * job.from_stride;
    const int head = static_cast<int>(reinterpret_cast<std::uintptr_t>(job.to + row[u] * job.to_stride) % 16 / 2);
    shift[u] = static_cast<int>(reinterpret_cast<std::uintptr_t>(from - head) % 16 / 2);
    element[u] = static_cast<std::int64_t>(at - below * units) * 8 - head;
    const std::int64_t first = element[u] - shift[u];
    if (row[u] >= job.from_rows || first < 0 || first + (shift[u] == 0 ? 8 : 16) > job.from_columns) {
      shift[u] = -1;
      continue;
    }
    low[u] = *reinterpret_cast<const uint4*>(from + first);
    if (shift[u] != 0) high[u] = *reinterpret_cast<const uint4*>(from + first + 8);
  }
#pragma unroll
  for (int u = 0; u < move_units; ++u) {
    if (row[u] >= job.rows) return;
    std::uint16_t* const to = job.to + row[u] * job.to_stride;
    if (shift[u] >= 0)
      *reinterpret_cast<uint4*>(to + element[u]) = shifted(low[u], high[u], shift[u]);
    else
      move_edge(job.from + row[u] * job.from_stride, to, element[u], row[u] < job.from_rows ? job.from_columns : 0, job.columns);
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
  Activation activation;
};

constexpr int warps = odd_threads / 32, pair = 2;  // of the few columns, what a warp or a block sums at once

/// A warp for a row of a and two columns of b. V elements at a time where rows of a and columns of b stand on 16 bytes.
template <class T, class O, int V>
struct Narrow {
  NarrowParams p;

  int pairs() const { return (p.columns + pair - 1) / pair; }
  std::int64_t blocks() const { return (p.rows * pairs() + warps - 1) / warps; }

  __device__ void operator()(std::int64_t block) const {
    const int lane = threadIdx.x % 32, turns = (p.columns + pair - 1) / pair;
    const std::int64_t warp = block * warps + threadIdx.x / 32, row = warp / turns;
    if (row >= p.rows) return;
    const int j = static_cast<int>(warp - row * turns) * pair;
    const T* const a = static_cast<const T*>(p.a.data) + row * p.a.stride;
    const T* const b = static_cast<const T*>(p.b.data) + j * p.b.step;
    const std::int64_t other = j + 1 < p.columns ? p.b.step : 0;  // of an odd one the second sum is the first
    float sums[pair] = {};
    const std::int64_t whole = p.k / V * V;
#pragma unroll 4
    for (std::int64_t k = lane * V; k < whole; k += 32 * V) {
      const Pack<T, V> left = load_pack<T, V>({a, 0, p.a.step}, 0, k, k + V);
#pragma unroll
      for (int q = 0; q < pair; ++q) {
        const Pack<T, V> right = load_pack<T, V>({b + q * other, 0, p.b.stride}, 0, k, k + V);
#pragma unroll
        for (int v = 0; v < V; ++v) sums[q] = fmaf(left.value(v), right.value(v), sums[q]);
      }
    }
    if (const std::int64_t k = whole + lane; k < p.k)
      for (int q = 0; q < pair; ++q) sums[q] = fmaf(widen(a[k * p.a.step]), widen(b[q * other + k * p.b.stride]), sums[q]);
#pragma unroll
    for (int q = 0; q < pair; ++q)
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) sums[q] += __shfl_xor_sync(0xffffffffU, sums[q], apart);
    if (lane < pair && j + lane < p.columns) store(row, j + lane, lane == 0 ? sums[0] : sums[1]);
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
  WeightedParams p;

  int pairs() const { return (p.few + pair - 1) / pair; }
  std::int64_t blocks() const { return ((p.columns + V - 1) / V + (p.sums.data != nullptr ? 1 : 0)) * pairs(); }

  __device__ void operator()(std::int64_t block) const {
    const int turns = (p.few + pair - 1) / pair, j = static_cast<int>(block % turns) * pair;
    const std::int64_t column = block / turns * V, other = j + 1 < p.few ? p.a.step : 0;
    const T* const a = static_cast<const T*>(p.a.data) + j * p.a.step;
    float sums[pair][V] = {};
    // What stands between rows may be read beside them, and counts for nothing; past the last row nothing is read.
    const std::int64_t safe = column + V <= p.columns ? p.rows : p.rows - 1;
    if (column < p.columns) {
#pragma unroll 4
      for (std::int64_t row = threadIdx.x; row < safe; row += odd_threads)
        add(load_pack<T, V>(p.b, row, column, column + V), a + row * p.a.stride, other, sums);
      if (threadIdx.x == 0 && safe < p.rows) {
        Pack<T, V> last;
#pragma unroll
        for (int v = 0; v < V; ++v)
          last.at[v] = column + v < p.columns ? static_cast<const T*>(p.b.data)[safe * p.b.stride + (column + v) * p.b.step] : T{};
        add(last, a + safe * p.a.stride, other, sums);
      }
    } else {
#pragma unroll 4
      for (std::int64_t row = threadIdx.x; row < p.rows; row += odd_threads)
        for (int q = 0; q < pair; ++q) sums[q][0] += widen(a[row * p.a.stride + q * other]);
    }
    finish(column, j, sums);
  }
  __device__ static void add(const Pack<T, V>& right, const T* a, std::int64_t other, float (&sums)[pair][V]) {
#pragma unroll
    for (int q = 0; q < pair; ++q) {
      const float left = widen(a[q * other]);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[q][v] = fmaf(left, right.value(v), sums[q][v]);
    }
  }
  /// Adds the sums of all threads in an order that is fixed: by sixteens, and then those.
  __device__ void finish(std::int64_t first, int j, const float (&sums)[pair][V]) const {
    constexpr int width = pair * V, groups = 16, each = odd_threads / groups;
    __shared__ float parts[odd_threads][width + 1], more[groups][width];
#pragma unroll
    for (int q = 0; q < pair; ++q)
#pragma unroll
      for (int v = 0; v < V; ++v) parts[threadIdx.x][q * V + v] = sums[q][v];
    __syncthreads();
    if (threadIdx.x < groups * width) {
      const int group = static_cast<int>(threadIdx.x) / width, v = static_cast<int>(threadIdx.x) % width;
      float sum = 0;
      for (int i = 0; i < each; ++i) sum += parts[group * each + i][v];
      more[group][v] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= width) return;
    const int row = j + static_cast<int>(threadIdx.x) / V, v = static_cast<int>(threadIdx.x) % V;
    const bool ones = first >= p.columns;
    if (row >= p.few || (ones ? v > 0 : first + v >= p.columns)) return;
    float sum = 0;
    for (int group = 0; group < groups; ++group) sum += more[group][threadIdx.x];
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

constexpr int terms_rows = 4, terms_columns = 4;  // of a thread

/// A thread has all that it loads of f32 under way before it adds the first term. Rows of `wide` are a copy's: they end on 64
/// bytes.
template <class T>
__global__ void __launch_bounds__(odd_threads, 5) terms_kernel(const __grid_constant__ TermsParams p) {
  constexpr int V = terms_columns;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * odd_threads + threadIdx.x) * V;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * terms_rows;
  if (column >= p.columns) return;
  const int rows = p.rows - first < terms_rows ? static_cast<int>(p.rows - first) : terms_rows;
  Pack<float, V> sums[terms_rows];
#pragma unroll
  for (int i = 0; i < terms_rows; ++i)
    if (i < rows) sums[i] = load_pack<float, V>(p.wide, first + i, column, column + V);
#pragma unroll 1
  for (int j = 0; j < p.few; ++j) {
    float right[V];
    const T* const row = static_cast<const T*>(p.b.data) + j * p.b.stride;
#pragma unroll
    for (int v = 0; v < V; ++v) right[v] = column + v < p.columns ? widen(row[(column + v) * p.b.step]) : 0;
    const T* const a = static_cast<const T*>(p.a.data) + first * p.a.stride + j * p.a.step;
    float left[terms_rows];
#pragma unroll
    for (int i = 0; i < terms_rows; ++i) left[i] = i < rows ? widen(a[i * p.a.stride]) : 0;
#pragma unroll
    for (int i = 0; i < terms_rows; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v) sums[i].at[v] = fmaf(left[i], right[v], sums[i].at[v]);
  }
  T* const to = static_cast<T*>(const_cast<void*>(p.c.data)) + first * p.c.stride;
  if (p.c_packs && column + V <= p.columns) {
#pragma unroll
    for (int i = 0; i < terms_rows; ++i)
      if (i < rows) store_pack<T, V>({to, p.c.stride, 1}, i, column, column + V, Pack<T, V>::of(sums[i].at));
    return;
  }
#pragma unroll
  for (int i = 0; i < terms_rows; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i < rows && column + v < p.columns) to[i * p.c.stride + (column + v) * p.c.step] = narrow<T>(sums[i].at[v]);
}

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

/// A rest for T and O, V elements at a time where its rows stand on 16 bytes.
template <template <class, class, int> class Rest, class T, class O, class Params>
void launch_rest(const Params& p, bool in_packs, std::span<const Move> moves, cudaStream_t stream) {
  const auto launch = [&](const auto& rest) { launch_odd(rest, rest.blocks(), moves, stream); };
  if (in_packs)
    launch(Rest<T, O, 16 / sizeof(T)>{p});
  else
    launch(Rest<T, O, 1>{p});
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
                       .rows = product.c.rows,
                       .k = product.a.columns,
                       .columns = static_cast<int>(product.c.columns),
                       .activation = product.activation};
  visit_result(product.a.dtype, product.c.dtype, [&](auto element, auto result) {
    const bool in_packs = packs(p.a, p.rows, size, 16) && packs(plane_of(columns), columns.rows, size, 16);
    launch_rest<Narrow, decltype(element), decltype(result)>(p, in_packs, moves, stream);
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
    launch_rest<Weighted, decltype(element), decltype(result)>(p, packs(p.b, p.rows, sizeof element, 16), moves, stream);
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
  constexpr std::int64_t most = 65535 * std::int64_t{terms_rows};  // rows of a grid
  if (c.rows > most) {
    add_narrow({terms.wide.part_of_rows(most, c.rows - most), terms.a.part_of_rows(most, c.rows - most), terms.b,
                c.part_of_rows(most, c.rows - most)},
               stream);
    return add_narrow({terms.wide.part_of_rows(0, most), terms.a.part_of_rows(0, most), terms.b, c.part_of_rows(0, most)}, stream);
  }
  const dim3 grid(static_cast<unsigned>((c.columns + wide - 1) / wide),
                  static_cast<unsigned>((c.rows + terms_rows - 1) / terms_rows));
  visit_storage(c.dtype, [&](auto element) { terms_kernel<Stored<decltype(element)>><<<grid, odd_threads, 0, stream>>>(p); });
  check_launch("narrow terms");
}

}  // namespace everglow::cuda
