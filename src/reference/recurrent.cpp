// Every recurrent layer in plain loops: the row, its packed weights and what it keeps.
#include "core/recurrent.hpp"

#include "core/philox.hpp"
#include "core/recurrent_stack.hpp"
#include "reference/recurrent_layer.hpp"
#include "reference/rows.hpp"

#include <algorithm>
#include <utility>

namespace everglow::reference {

RecurrentReserve take_reserve(Arena& arena, const RecurrentDescription& d, std::int64_t steps, std::int64_t batch) {
  const std::int64_t units = d.directions() * steps * batch * d.hidden;
  const bool cells = d.cell == Cell::lstm || d.cell == Cell::gru;
  return {arena.take<double>(recurrent::gate_count(d.cell) * units), arena.take<double>(cells ? units : 0)};
}

namespace {

/// Elements of one direction's matrices.
std::int64_t packed_elements(const RecurrentDescription& d) {
  return recurrent::gate_count(d.cell) * d.hidden * (d.inputs + recurrent::outputs_of(d)) + d.projection * d.hidden;
}

}  // namespace

RecurrentMatrices packed_matrices(const RecurrentDescription& d, void* packed, std::int64_t direction) {
  const std::int64_t rows = recurrent::gate_count(d.cell) * d.hidden, outputs = recurrent::outputs_of(d);
  auto* start = static_cast<std::byte*>(packed) + static_cast<std::size_t>(direction * packed_elements(d)) * size_of(d.dtype);
  const auto matrix = [&](std::int64_t height, std::int64_t width) {
    const ConstTensorView view(start, d.dtype, {height, width});
    start += static_cast<std::size_t>(height * width) * size_of(d.dtype);
    return view;
  };
  RecurrentMatrices out;
  out.w_ih = matrix(rows, d.inputs), out.w_hh = matrix(rows, outputs);
  if (d.projection > 0) out.w_hr = matrix(d.projection, d.hidden);
  return out;
}

namespace {

Footprint footprint(const RecurrentQuery& q) {
  const RecurrentDescription& d = q.description;
  const auto packed = static_cast<std::size_t>(d.directions() * packed_elements(d)) * size_of(d.dtype);
  std::size_t workspace = recurrent_forward_bytes(q);
  if (!d.training) return {workspace, 0, packed};
  Arena kept;
  take_reserve(kept, d, q.sizes.steps, q.sizes.batch);
  return {std::max(workspace, recurrent_backward_bytes(q)), kept.bytes(), packed};
}

void pack(const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed, const Stream&) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const RecurrentMatrices m = packed_matrices(q.description, packed, static_cast<std::int64_t>(i));
    for (const auto& [to, from] :
         {std::pair(m.w_ih, weights[i].w_ih), std::pair(m.w_hh, weights[i].w_hh), std::pair(m.w_hr, weights[i].w_hr)}) {
      if (!to.given()) continue;
      TensorView target(const_cast<void*>(to.data), to.dtype, {to.size(0), to.size(1)});
      for (std::int64_t row = 0; row < to.size(0); ++row)
        for (std::int64_t column = 0; column < to.size(1); ++column) write(target, read(from, row, column), row, column);
    }
  }
}

void drop(const RecurrentQuery&, const recurrent::Mask& mask, const ConstTensorView& from, const TensorView& to, const Stream&) {
  const std::uint64_t threshold = dropout_threshold(mask.probability);
  for (std::int64_t i = 0; i < from.elements(); ++i) {
    const bool keep = dropout_keeps(mask.seed, mask.offset, mask.first + static_cast<std::uint64_t>(i), threshold);
    write(to.data, to.dtype, i, keep ? read(from.data, from.dtype, i) / (1 - mask.probability) : 0);
  }
}

constexpr recurrent::LayerRow layer{
    .footprint = footprint, .forward = recurrent_forward, .backward = recurrent_backward, .pack = pack, .drop = drop};

}  // namespace

const RecurrentRow recurrent = recurrent::stacked<layer>("reference.recurrent", [](const RecurrentQuery&) { return accept(); });

}  // namespace everglow::reference
