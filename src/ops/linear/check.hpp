// Arguments of the linear layer, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::linear {

/// What the packed weights of a plan must be.
struct Packing {
  std::size_t bytes = 0;
  std::uint64_t key = 0;
};

void check(const LinearQuery& query);
/// Of `prepare`.
void check(const LinearQuery& query, const LinearSizes& sizes);
/// Returns the tensors with leading dimensions folded: [batch, columns].
LinearForward check(const LinearQuery& query, const LinearForward& tensors, const Packing& packing);
LinearBackward check(const LinearQuery& query, const LinearBackward& tensors, const Packing& packing);
/// Of `pack`: the weight, and memory for the packed form.
void check(const LinearQuery& query, const ConstTensorView& weight, const PackedWeights& packed, const Packing& packing);

}  // namespace everglow::linear
