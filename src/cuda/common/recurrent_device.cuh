// What the kernels of a recurrent layer share: lengths and resets as one thread reads them, views, and grids over rows and columns.
#pragma once

#include "cuda/common/device.hpp"
#include "cuda/common/recurrent_layout.hpp"
#include "cuda/common/storage.cuh"

#include <algorithm>
#include <cstdint>

namespace everglow::cuda {

/// A view [n, rows, columns] whose columns stand side by side; null where it is not given.
struct StepView {
  void* data = nullptr;
  std::int64_t outer = 0, inner = 0;
  bool f32 = false;
  template <class T>
  __device__ T* at(std::int64_t i, std::int64_t row) const {
    return static_cast<T*>(data) + i * outer + row * inner;
  }
  /// An element that is f32 or T.
  template <class T>
  __device__ float read(std::int64_t i, std::int64_t row, std::int64_t column) const {
    return f32 ? at<float>(i, row)[column] : widen(at<T>(i, row)[column]);
  }
  template <class T>
  __device__ void write(std::int64_t i, std::int64_t row, std::int64_t column, float value) const {
    if (f32)
      at<float>(i, row)[column] = value;
    else
      at<T>(i, row)[column] = narrow<T>(value);
  }
};
inline StepView view_of(const ConstTensorView& view) {
  if (!view.given()) return {};
  return {const_cast<void*>(view.data), view.strides[0], view.strides[1], view.dtype == DType::f32};
}

/// A direction walks from the first to the last valid step of a row of the batch: upwards, or from the last one downwards. A length
/// out of range is clamped.
struct Walks {
  std::int64_t steps = 0, batch = 0, hidden = 0, outputs = 0;
  int directions = 1;
  const std::int32_t* lengths = nullptr;  // null: all steps
  std::int64_t lengths_stride = 0;
  const std::uint8_t* resets = nullptr;  // null: none
  std::int64_t resets_step = 0, resets_row = 0;

  __device__ std::int64_t length(std::int64_t b) const {
    if (lengths == nullptr) return steps;
    return max(std::int64_t{0}, min(steps, static_cast<std::int64_t>(lengths[b * lengths_stride])));
  }
  __device__ bool clamps(std::int64_t b) const { return lengths != nullptr && lengths[b * lengths_stride] != length(b); }
  __device__ static std::int64_t first(int direction, std::int64_t length) { return direction == 0 ? 0 : length - 1; }
  __device__ static std::int64_t last(int direction, std::int64_t length) { return direction == 0 ? length - 1 : 0; }
  __device__ static std::int64_t before(int direction, std::int64_t step) { return direction == 0 ? step - 1 : step + 1; }
  __device__ static std::int64_t after(int direction, std::int64_t step) { return direction == 0 ? step + 1 : step - 1; }
  /// Whether the state before a valid step is cut off (core/recurrent.hpp). Flags past the length are not read.
  __device__ bool cut(int direction, std::int64_t step, std::int64_t b, std::int64_t length) const {
    const std::int64_t edge = direction == 0 ? step : step + 1;
    return resets != nullptr && edge < length && resets[edge * resets_step + b * resets_row] != 0;
  }
};

/// One row of the batch at one step of a direction.
struct Place {
  int direction;
  std::int64_t b, step, length, at;  // at: of [directions, B]
  bool valid;
  __device__ Place(const Walks& walks, int of_direction, std::int64_t of_step, std::int64_t row)
      : direction(of_direction),
        b(row),
        step(of_step),
        length(walks.length(row)),
        at(of_direction * walks.batch + row),
        valid(of_step < length) {}
  /// In a loop over the steps, whose directions are the grid's z.
  __device__ Place(const Walks& walks, std::int64_t iteration, std::int64_t row)
      : Place(walks, static_cast<int>(blockIdx.z), blockIdx.z == 0 ? iteration : walks.steps - 1 - iteration, row) {}
  __device__ bool first() const { return step == Walks::first(direction, length); }
  __device__ bool last() const { return step == Walks::last(direction, length); }
  __device__ bool cut(const Walks& walks) const { return walks.cut(direction, step, b, length); }
  /// Whether the step after a valid one begins from zero.
  __device__ bool cut_after(const Walks& walks) const {
    return !last() && walks.cut(direction, Walks::after(direction, step), b, length);
  }
  /// Where a unit of the cells lies that are kept, at this step or another.
  __device__ std::int64_t cell(const Walks& walks, std::int64_t of_step, std::int64_t unit) const {
    return ((of_step * walks.batch + b) * walks.directions + direction) * walks.hidden + unit;
  }
};

/// Where a backward pass finds h before a valid step.
struct States {
  StepView y, h0;
  template <class T>
  __device__ float before(const Walks& walks, const Place& place, std::int64_t j) const {
    if (place.cut(walks)) return 0;
    if (place.first()) return h0.data != nullptr ? h0.read<T>(place.direction, place.b, j) : 0;
    return y.read<T>(Walks::before(place.direction, place.step), place.b, place.direction * walks.outputs + j);
  }
};

template <class Tensors>
Walks walks_of(const LayerShape& s, const Tensors& t) {
  Walks w{
      .steps = s.steps, .batch = s.batch, .hidden = s.hidden, .outputs = s.outputs, .directions = static_cast<int>(s.directions)};
  if (t.lengths.given()) w.lengths = static_cast<const std::int32_t*>(t.lengths.data), w.lengths_stride = t.lengths.strides[0];
  if (t.resets.given()) {
    w.resets = static_cast<const std::uint8_t*>(t.resets.data);
    w.resets_step = t.resets.strides[0], w.resets_row = t.resets.strides[1];
  }
  return w;
}

/// Nearest value of 11 bits, so that it does not matter whether a product rounds or cuts what it reads.
__device__ inline float rounded_factor(float value, bool tf32) {
  if (!tf32) return value;
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

/// A thread for each column, and rows in turn; z counts directions.
struct Grid {
  dim3 blocks, threads;
  bool empty;
};
inline Grid grid_over(std::int64_t rows, std::int64_t columns, std::int64_t directions = 1) {
  unsigned x = 32;
  while (x < 128 && x < columns) x *= 2;
  const unsigned y = 128 / x;
  const auto wide = static_cast<unsigned>((columns + x - 1) / x);
  const auto high = static_cast<unsigned>(std::min<std::int64_t>((rows + y - 1) / y, 65535));
  return {dim3(wide, high, static_cast<unsigned>(directions)), dim3(x, y), rows == 0 || columns == 0};
}
__device__ inline std::int64_t grid_column() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t grid_row() { return static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t grid_rows() { return static_cast<std::int64_t>(gridDim.y) * blockDim.y; }

template <class Params>
void launch(void (*kernel)(Params), const Grid& grid, const Params& p, cudaStream_t stream) {
  if (grid.empty) return;
  kernel<<<grid.blocks, grid.threads, 0, stream>>>(p);
  check_launch("recurrent");
}

}  // namespace everglow::cuda
