// Arguments of the recurrent layer, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

#include <cstdint>

namespace everglow::recurrent {

/// What a plan's runs are checked against.
struct Contract {
  const RecurrentQuery& query;
  std::string_view row;  // the row that runs
  Footprint footprint;
  std::uint64_t key = 0;  // of packed weights
};

void check(const RecurrentQuery& query);
void check(const Contract& contract, const RecurrentForward& tensors);
void check(const Contract& contract, const RecurrentBackward& tensors);
void check_pack(const Contract& contract, std::span<const RecurrentWeights> weights, const PackedWeights& packed);

/// Depends on the description, the device and the row, never on sizes, so that one packing serves every plan of the layer.
std::uint64_t packing_key(const RecurrentQuery& query, std::string_view row);

}  // namespace everglow::recurrent
