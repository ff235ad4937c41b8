// The row cuda.recurrent_stepwise: f32, f16 and bf16, every cell and option. Its weights and what it keeps.
#include "core/philox.hpp"
#include "core/recurrent_stack.hpp"
#include "core/visit.hpp"
#include "cuda/common/linear_layout.hpp"
#include "cuda/common/recurrent_device.cuh"
#include "cuda/common/rows.hpp"

#include <utility>

namespace everglow::cuda {
namespace {

/// A matrix whose rows are laid out again, in its own type or in f32. What stands behind a row is left as it is.
struct LayJob {
  const void* from;
  void* to;
  std::int64_t rows, columns, from_stride, to_stride;
  bool widens;
};
struct LayParams {
  LayJob jobs[10];
};

template <class T>
__global__ void __launch_bounds__(256) lay_kernel(const __grid_constant__ LayParams p) {
  const LayJob& job = p.jobs[blockIdx.y];
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < job.rows;
       row += static_cast<std::int64_t>(gridDim.x) * blockDim.y)
    for (std::int64_t column = threadIdx.x; column < job.columns; column += blockDim.x) {
      const T value = static_cast<const T*>(job.from)[row * job.from_stride + column];
      if (job.widens)
        static_cast<float*>(job.to)[row * job.to_stride + column] = widen(value);
      else
        static_cast<T*>(job.to)[row * job.to_stride + column] = value;
    }
}

/// Seed and offset come with the run or, where a state is given, from the card's memory.
struct DropParams {
  const void* from;
  void* to;
  std::int64_t elements;
  std::uint64_t first, seed, offset, threshold;
  float scale;
  const std::int64_t* state;
  std::int64_t state_stride;
};

/// A thread takes the elements of one counter.
template <class T>
__global__ void __launch_bounds__(256) drop_kernel(const __grid_constant__ DropParams p) {
  const std::uint64_t seed = p.state != nullptr ? static_cast<std::uint64_t>(p.state[0]) : p.seed;
  const std::uint64_t offset = p.state != nullptr ? static_cast<std::uint64_t>(p.state[p.state_stride]) : p.offset;
  const std::uint64_t end = p.first + static_cast<std::uint64_t>(p.elements);
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t counter = p.first / 4 + static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; 4 * counter < end;
       counter += step) {
    const auto words = philox(seed, offset + counter);
#pragma unroll
    for (std::uint64_t word = 0; word < 4; ++word) {
      const std::uint64_t element = 4 * counter + word;
      if (element < p.first || element >= end) continue;
      const std::uint64_t i = element - p.first;
      const float value = widen(static_cast<const T*>(p.from)[i]);
      static_cast<T*>(p.to)[i] = narrow<T>(words[word] >= p.threshold ? value * p.scale : 0);
    }
  }
}

void drop(const RecurrentQuery& q, const recurrent::Mask& mask, const ConstTensorView& from, const TensorView& to,
          const Stream& stream) {
  if (from.elements() == 0) return;
  const CurrentCard current(q.device.device.index);
  const DropParams p{.from = from.data,
                     .to = to.data,
                     .elements = from.elements(),
                     .first = mask.first,
                     .seed = mask.seed,
                     .offset = mask.offset,
                     .threshold = dropout_threshold(mask.probability),
                     .scale = static_cast<float>(1 / (1 - mask.probability)),
                     .state = static_cast<const std::int64_t*>(mask.state.data),
                     .state_stride = mask.state.given() ? mask.state.strides[0] : 0};
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(p.elements / 1024 + 1, 65535));
  visit_storage(from.dtype,
                [&](auto element) { drop_kernel<Stored<decltype(element)>><<<blocks, 256, 0, stream_of(stream)>>>(p); });
  check_launch("recurrent");
}

Footprint footprint(const RecurrentQuery& q) {
  const LayerShape s = layer_shape(q.description, q.sizes.steps, q.sizes.batch);
  Arena packed, reserve;
  take_weights(packed, s);
  std::size_t workspace = recurrent_forward_bytes(q);
  if (q.description.training) {
    take_reserve(reserve, s);
    workspace = std::max(workspace, recurrent_backward_bytes(q));
  }
  return {workspace, reserve.bytes(), packed.bytes()};
}

void pack(const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed, const Stream& stream) {
  const CurrentCard current(q.device.device.index);
  const LayerShape s = layer_shape(q.description, 0, 0);
  Arena arena(packed);
  fill_weights(take_weights(arena, s), s, weights, {.w_ih = true, .w_hh = true, .wide_ih = true, .wide_hh = true, .wide_hr = true},
               stream_of(stream));
}

constexpr recurrent::LayerRow layer{
    .footprint = footprint, .forward = recurrent_forward, .backward = recurrent_backward, .pack = pack, .drop = drop};

}  // namespace

LayerWeights take_weights(Arena& arena, const LayerShape& s) {
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return arena.take<std::byte>(rows * line(columns, s.dtype) * static_cast<std::int64_t>(size_of(s.dtype)));
  };
  const auto wide = [&](std::int64_t rows, std::int64_t columns) { return arena.take<float>(rows * line(columns)); };
  LayerWeights out;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    LayerMatrices& m = out.of[d];
    m.w_ih = matrix(s.gates(), s.inputs), m.w_hh = matrix(s.gates(), s.outputs);
    m.wide_ih = s.narrow() ? wide(s.gates(), s.inputs) : static_cast<float*>(m.w_ih);
    m.wide_hh = s.narrow() ? wide(s.gates(), s.outputs) : static_cast<float*>(m.w_hh);
    if (s.projects) m.wide_hr = wide(s.outputs, s.hidden);
  }
  return out;
}

void fill_weights(const LayerWeights& to, const LayerShape& s, std::span<const RecurrentWeights> from, const WeightNeeds& needs,
                  cudaStream_t stream) {
  LayParams p{};
  unsigned jobs = 0;
  std::int64_t most = 0;
  const auto lay = [&](bool needed, const ConstTensorView& view, void* target, bool widens) {
    if (!needed || target == nullptr || view.elements() == 0) return;
    const std::int64_t stride = line(view.size(1), widens ? DType::f32 : s.dtype);
    p.jobs[jobs++] = {view.data, target, view.size(0), view.size(1), view.strides[0], stride, widens};
    most = std::max(most, view.size(0));
  };
  for (std::size_t d = 0; d < from.size(); ++d) {
    const LayerMatrices& m = to.of[d];
    lay(needs.w_ih || (!s.narrow() && needs.wide_ih), from[d].w_ih, m.w_ih, false);
    lay(needs.w_hh || (!s.narrow() && needs.wide_hh), from[d].w_hh, m.w_hh, false);
    lay(s.narrow() && needs.wide_ih, from[d].w_ih, m.wide_ih, true);
    lay(s.narrow() && needs.wide_hh, from[d].w_hh, m.wide_hh, true);
    lay(needs.wide_hr, from[d].w_hr, m.wide_hr, true);
  }
  if (jobs == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>((most + 3) / 4, 1024)), jobs);
  visit_storage(s.dtype, [&](auto element) { lay_kernel<Stored<decltype(element)>><<<grid, dim3(64, 4), 0, stream>>>(p); });
  check_launch("recurrent");
}

LayerReserve take_reserve(Arena& arena, const LayerShape& s) {
  const bool cells = s.cell == Cell::lstm || s.cell == Cell::gru;
  return {arena.take<float>(s.rows() * s.row()), arena.take<float>(cells ? s.rows() * s.directions * s.hidden : 0)};
}

void* take_library(Arena& arena, const RecurrentQuery& q) {
  if (q.options.deterministic) return nullptr;
  const LayerShape s = layer_shape(q.description, q.sizes.steps, q.sizes.batch);
  const auto gates = static_cast<double>(s.gates()) * static_cast<double>(s.rows());
  const double of_gates = gates * static_cast<double>(std::max(s.inputs, s.outputs));
  const double of_states = static_cast<double>(s.rows()) * static_cast<double>(s.outputs) * static_cast<double>(s.hidden);
  return asks_library(std::max(of_gates, of_states)) ? take_library_scratch(arena) : nullptr;
}

const RecurrentRow recurrent_stepwise =
    recurrent::stacked<layer>("cuda.recurrent_stepwise", accept_storage_on_card<RecurrentQuery>);

}  // namespace everglow::cuda
