// Copies, activations, sums of rows, and a product that takes any matrices.
#include "cuda/common/matrix.hpp"

#include "core/visit.hpp"
#include "cuda/common/activation.cuh"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/odd.hpp"
#include "cuda/common/visit_result.cuh"

namespace everglow::cuda {
namespace {

/// The activation is a constant, or each element would branch by itself and no two would be under way together.
template <Activation activation>
struct Activated {
  static constexpr bool reads_a = true, reads_b = false;
  __device__ float operator()(float a, float, std::int64_t) const { return activate(activation, a); }
};
/// a is what the activation read, b the gradient of what it gave.
template <Activation activation>
struct ActivationGradient {
  static constexpr bool reads_a = true, reads_b = true;
  __device__ float operator()(float a, float b, std::int64_t) const { return b * activation_slope(activation, a); }
};

/// Calls f with the activation as a constant.
template <class F>
void visit_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none:
      return;  // is a copy
    case Activation::relu:
      return f(std::integral_constant<Activation, Activation::relu>{});
    case Activation::gelu_tanh:
      return f(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::gelu_erf:
      return f(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::silu:
      return f(std::integral_constant<Activation, Activation::silu>{});
  }
}

Plane plane_of(const Matrix& m) { return {m.data, m.stride, m.step}; }

template <class F>
ElementwiseParams<F> params_of(const Matrix& a, const Matrix& b, const Matrix& y, const F& f) {
  return {.a = plane_of(a), .b = plane_of(b), .y = plane_of(y), .rows = y.rows, .columns = y.columns, .f = f};
}

/// Bits, not numbers: what a row holds as units of up to 16 bytes.
struct MoveParams {
  Plane from, to;  // in units
  std::int64_t rows, columns;
};

template <class Unit>
__global__ void __launch_bounds__(elementwise_threads) move_kernel(const __grid_constant__ MoveParams p) {
  constexpr int unrolled = 8;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * unrolled * blockDim.x + threadIdx.x;
  const std::int64_t rows_at_once = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < p.rows; row += rows_at_once) {
    const Unit* const from = static_cast<const Unit*>(p.from.data) + row * p.from.stride;
    Unit* const to = static_cast<Unit*>(const_cast<void*>(p.to.data)) + row * p.to.stride;
    Unit units[unrolled];
#pragma unroll
    for (int u = 0; u < unrolled; ++u)
      if (const std::int64_t column = first + u * blockDim.x; column < p.columns) units[u] = from[column * p.from.step];
#pragma unroll
    for (int u = 0; u < unrolled; ++u)
      if (const std::int64_t column = first + u * blockDim.x; column < p.columns) to[column * p.to.step] = units[u];
  }
}

/// True where rows are whole units on both sides, and the copy is under way.
template <class Unit>
bool move_units(const Matrix& from, const Matrix& to, cudaStream_t stream) {
  const std::size_t size = size_of(from.dtype);
  const auto count = static_cast<std::int64_t>(sizeof(Unit) / size);
  const bool whole =
      count == 1 || (count > 1 && from.columns % count == 0 && packs(plane_of(from), from.rows, size, sizeof(Unit)) &&
                     packs(plane_of(to), from.rows, size, sizeof(Unit)));
  if (!whole) return false;
  const MoveParams p{.from = {from.data, from.stride / count, from.step},
                     .to = {to.data, to.stride / count, to.step},
                     .rows = from.rows,
                     .columns = from.columns / count};
  constexpr std::int64_t unrolled = 8, most_rows = 32768;
  int x = 32;
  while (x < elementwise_threads && x * unrolled < p.columns) x *= 2;
  const int y = elementwise_threads / x;
  const dim3 grid(static_cast<unsigned>((p.columns + x * unrolled - 1) / (x * unrolled)),
                  static_cast<unsigned>(std::min<std::int64_t>((p.rows + y - 1) / y, most_rows)));
  move_kernel<Unit><<<grid, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 0, stream>>>(p);
  check_launch("copy");
  return true;
}

constexpr int sum_columns = 32, sum_lanes = 8;  // of a block
constexpr std::int64_t sum_parts = 64, sum_least_rows = 64;

std::int64_t rows_a_part(std::int64_t rows) { return std::max((rows + sum_parts - 1) / sum_parts, sum_least_rows); }

struct SumParams {
  Plane a, sums;
  float* parts;  // [parts, columns]
  std::int64_t rows, columns, rows_a_part, parts_count;
  bool accumulate;
};

template <class T>
__global__ void __launch_bounds__(sum_columns* sum_lanes) sum_part_kernel(const __grid_constant__ SumParams p) {
  __shared__ float sums[sum_lanes][sum_columns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * sum_columns + threadIdx.x;
  const std::int64_t begin = blockIdx.y * p.rows_a_part;
  const std::int64_t end = begin + p.rows_a_part < p.rows ? begin + p.rows_a_part : p.rows;
  float sum = 0;
  if (column < p.columns) {
    const T* const a = static_cast<const T*>(p.a.data) + column * p.a.step;
#pragma unroll 8
    for (std::int64_t row = begin + threadIdx.y; row < end; row += sum_lanes) sum += widen(a[row * p.a.stride]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= p.columns) return;
#pragma unroll
  for (int lane = 1; lane < sum_lanes; ++lane) sum += sums[lane][threadIdx.x];
  p.parts[blockIdx.y * p.columns + column] = sum;
}

template <class T>
__global__ void sum_end_kernel(const __grid_constant__ SumParams p) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= p.columns) return;
  float sum = 0;
  for (std::int64_t part = 0; part < p.parts_count; ++part) sum += p.parts[part * p.columns + column];
  T* const to = static_cast<T*>(const_cast<void*>(p.sums.data)) + column * p.sums.step;
  *to = narrow<T>(p.accumulate ? widen(*to) + sum : sum);
}

constexpr int tile = 32, tile_rows = 8;  // a thread makes tile / tile_rows elements of c

struct ProductParams {
  Plane a, b, bias, c;
  std::int64_t m, n, k;
  bool accumulate;
};

template <class T, class O>
__global__ void __launch_bounds__(tile* tile_rows) product_kernel(const __grid_constant__ ProductParams p) {
  __shared__ float a_tile[tile][tile + 1], b_tile[tile][tile + 1];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * tile, column = static_cast<std::int64_t>(blockIdx.x) * tile;
  const T* const a = static_cast<const T*>(p.a.data);
  const T* const b = static_cast<const T*>(p.b.data);
  float sums[tile / tile_rows] = {};
  for (std::int64_t begin = 0; begin < p.k; begin += tile) {
#pragma unroll
    for (int i = threadIdx.y; i < tile; i += tile_rows) {
      const std::int64_t x = threadIdx.x, ak = begin + x, bk = begin + i;
      a_tile[i][x] = row + i < p.m && ak < p.k ? widen(a[(row + i) * p.a.stride + ak * p.a.step]) : 0;
      b_tile[i][x] = bk < p.k && column + x < p.n ? widen(b[bk * p.b.stride + (column + x) * p.b.step]) : 0;
    }
    __syncthreads();
    const int depth = p.k - begin < tile ? static_cast<int>(p.k - begin) : tile;
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < tile / tile_rows; ++i)
        sums[i] = fmaf(a_tile[threadIdx.y + i * tile_rows][k], b_tile[k][threadIdx.x], sums[i]);
    }
    __syncthreads();
  }
  const std::int64_t j = column + threadIdx.x;
  if (j >= p.n) return;
  const float bias = p.bias.data != nullptr ? widen(static_cast<const T*>(p.bias.data)[j * p.bias.step]) : 0;
#pragma unroll
  for (int i = 0; i < tile / tile_rows; ++i) {
    const std::int64_t at = row + threadIdx.y + i * tile_rows;
    if (at >= p.m) continue;
    O* const to = static_cast<O*>(const_cast<void*>(p.c.data)) + at * p.c.stride + j * p.c.step;
    *to = narrow<O>((p.accumulate ? widen(*to) : 0) + sums[i] + bias);
  }
}

}  // namespace

Matrix matrix_of(const ConstTensorView& view) {
  if (!view.given()) return {};
  void* const data = const_cast<void*>(view.data);
  if (view.rank == 1) return {data, 1, view.shape[0], 0, view.strides[0], view.dtype};
  return {data, view.shape[0], view.shape[1], view.strides[0], view.strides[1], view.dtype};
}

void copy_matrix(const Matrix& from, const Matrix& to, bool accumulate, cudaStream_t stream) {
  if (to.rows == 0 || to.columns == 0) return;
  if (!accumulate && from.dtype == to.dtype) {
    if (move_units<uint4>(from, to, stream)) return;
    if (can_move(from, to)) return move({{{from, to}}}, stream);
    if (!move_units<std::uint32_t>(from, to, stream)) move_units<std::uint16_t>(from, to, stream);
    return;
  }
  if (from.dtype == DType::f32 && to.dtype != DType::f32) {
    visit_storage(to.dtype, [&](auto element) {
      using T = Stored<decltype(element)>;
      if (accumulate)
        launch_elementwise<float, T>(params_of(from, to, to, Sum{}), stream);
      else
        launch_elementwise<float, T>(params_of(from, {}, to, Identity{}), stream);
    });
    return;
  }
  visit_result(from.dtype, to.dtype, [&](auto element, auto result) {
    using A = decltype(element);
    using T = decltype(result);
    if (accumulate)
      launch_elementwise<A, T>(params_of(from, to, to, Sum{}), stream);
    else
      launch_elementwise<A, T>(params_of(from, {}, to, Identity{}), stream);
  });
}

void clear_matrix(const Matrix& m, cudaStream_t stream) {
  if (m.rows == 0 || m.columns == 0) return;
  const std::size_t size = size_of(m.dtype);
  check(cudaMemset2DAsync(m.data, static_cast<std::size_t>(m.stride) * size, 0, static_cast<std::size_t>(m.columns) * size,
                          static_cast<std::size_t>(m.rows), stream),
        "clear");
}

void activate_matrix(const Matrix& z, const Matrix& y, Activation activation, cudaStream_t stream) {
  if (y.rows == 0 || y.columns == 0) return;
  if (activation == Activation::none) return copy_matrix(z, y, false, stream);
  visit_storage(y.dtype, [&](auto element) {
    using T = Stored<decltype(element)>;
    visit_activation(activation, [&](auto constant) {
      launch_elementwise<T, T>(params_of(z, {}, y, Activated<decltype(constant)::value>{}), stream);
    });
  });
}

void activation_gradient(const Matrix& z, const Matrix& dy, const Matrix& dz, Activation activation, cudaStream_t stream) {
  if (dz.rows == 0 || dz.columns == 0) return;
  if (activation == Activation::none) return copy_matrix(dy, dz, false, stream);
  visit_storage(dz.dtype, [&](auto element) {
    using T = Stored<decltype(element)>;
    visit_activation(activation, [&](auto constant) {
      launch_elementwise<T, T>(params_of(z, dy, dz, ActivationGradient<decltype(constant)::value>{}), stream);
    });
  });
}

std::int64_t sum_rows_scratch(std::int64_t rows, std::int64_t columns) {
  return (rows + rows_a_part(rows) - 1) / rows_a_part(rows) * columns;
}

void sum_rows(const Matrix& a, const Matrix& sums, bool accumulate, float* scratch, cudaStream_t stream) {
  if (a.columns == 0) return;
  const std::int64_t each = rows_a_part(a.rows), parts = (a.rows + each - 1) / each;
  const SumParams p{.a = plane_of(a),
                    .sums = plane_of(sums),
                    .parts = scratch,
                    .rows = a.rows,
                    .columns = a.columns,
                    .rows_a_part = each,
                    .parts_count = parts,
                    .accumulate = accumulate};
  visit_result(a.dtype, sums.dtype, [&](auto element, auto result) {
    const auto blocks = static_cast<unsigned>((a.columns + sum_columns - 1) / sum_columns);
    if (parts > 0)
      sum_part_kernel<decltype(element)>
          <<<dim3(blocks, static_cast<unsigned>(parts)), dim3(sum_columns, sum_lanes), 0, stream>>>(p);
    constexpr unsigned threads = 128;
    sum_end_kernel<decltype(result)><<<static_cast<unsigned>((a.columns + threads - 1) / threads), threads, 0, stream>>>(p);
  });
  check_launch("sum of rows");
}

void multiply_plain(const PlainProduct& product, cudaStream_t stream) {
  const Matrix& c = product.c;
  if (c.rows == 0 || c.columns == 0) return;
  // A grid has at most 65535 blocks in its second dimension; the first takes the longer side.
  const bool turn = c.rows > c.columns && product.bias.data == nullptr;
  const Matrix a = turn ? product.b.transposed() : product.a, b = turn ? product.a.transposed() : product.b;
  const Matrix to = turn ? c.transposed() : c;
  constexpr std::int64_t most_rows = std::int64_t{65535} * tile;
  visit_result(product.a.dtype, c.dtype, [&](auto element, auto result) {
    for (std::int64_t row = 0; row < to.rows; row += most_rows) {
      const std::int64_t rows = std::min(most_rows, to.rows - row);
      const auto from_row = [row](Plane plane, DType dtype) {
        const auto bytes = row * plane.stride * static_cast<std::int64_t>(size_of(dtype));
        plane.data = static_cast<const char*>(plane.data) + bytes;
        return plane;
      };
      const ProductParams p{.a = from_row(plane_of(a), a.dtype),
                            .b = plane_of(b),
                            .bias = plane_of(product.bias),
                            .c = from_row(plane_of(to), to.dtype),
                            .m = rows,
                            .n = to.columns,
                            .k = a.columns,
                            .accumulate = product.accumulate};
      const dim3 grid(static_cast<unsigned>((to.columns + tile - 1) / tile), static_cast<unsigned>((rows + tile - 1) / tile));
      product_kernel<decltype(element), decltype(result)><<<grid, dim3(tile, tile_rows), 0, stream>>>(p);
    }
  });
  check_launch("plain product");
}

}  // namespace everglow::cuda
