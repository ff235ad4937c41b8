// Several recurrent layers as one after the other, for every row: between two layers stands a sequence [T, B, directions·H] of the
// storage type, so a stack gives the same bits as plans of one layer each. What a row knows is one layer.
#pragma once

#include "core/rows.hpp"

namespace everglow::recurrent {

/// A part of the dropout mask: the elements of one sequence from index `first` on. On a card seed and offset may stand in `state`,
/// i64 [2], in place of the two numbers.
struct Mask {
  double probability = 0;
  std::uint64_t seed = 0, offset = 0, first = 0;
  ConstTensorView state{};
};

/// How a row runs one layer. Queries have one layer and no dropout.
struct LayerRow {
  Footprint (*footprint)(const RecurrentQuery&) = nullptr;
  void (*forward)(const RecurrentQuery&, const RecurrentForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const RecurrentQuery&, const RecurrentBackward&, void* workspace, const Stream&) = nullptr;
  void (*pack)(const RecurrentQuery&, std::span<const RecurrentWeights>, void* packed, const Stream&) = nullptr;
  /// to = from without the elements that the mask drops, the others scaled by 1 / (1 - p). Dense; `to` may be `from`.
  void (*drop)(const RecurrentQuery&, const Mask&, const ConstTensorView& from, const TensorView& to, const Stream&) = nullptr;
};

Footprint stack_footprint(const LayerRow& row, const RecurrentQuery& query);
void stack_forward(const LayerRow& row, const RecurrentQuery& query, const RecurrentForward& tensors, void* workspace,
                   const Stream& stream);
void stack_backward(const LayerRow& row, const RecurrentQuery& query, const RecurrentBackward& tensors, void* workspace,
                    const Stream& stream);
void stack_pack(const LayerRow& row, const RecurrentQuery& query, std::span<const RecurrentWeights> weights, void* packed,
                const Stream& stream);

/// The row of a table that runs any number of layers.
template <const LayerRow& layer>
constexpr RecurrentRow stacked(std::string_view name, Verdict (*accepts)(const RecurrentQuery&)) {
  return {.name = name,
          .accepts = accepts,
          .footprint = [](const RecurrentQuery& q) { return stack_footprint(layer, q); },
          .forward = [](const RecurrentQuery& q, const RecurrentForward& t, void* workspace,
                        const Stream& stream) { stack_forward(layer, q, t, workspace, stream); },
          .backward = [](const RecurrentQuery& q, const RecurrentBackward& t, void* workspace,
                         const Stream& stream) { stack_backward(layer, q, t, workspace, stream); },
          .pack = [](const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed,
                     const Stream& stream) { stack_pack(layer, q, weights, packed, stream); }};
}

}  // namespace everglow::recurrent
