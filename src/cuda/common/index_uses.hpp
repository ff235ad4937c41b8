// Where each row of a table is used: the positions of a list of indices, sorted by index and ascending for each, so that sums over
// the uses of a row have one order.
#pragma once

#include "core/arena.hpp"

#include <everglow/tensor.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace everglow::cuda {

struct IndexUses {
  std::int64_t* order = nullptr;  // [indices], positions; those that use no row are last
  std::int64_t* first = nullptr;  // [vocabulary], of order; -1 where a row is not used
  std::int64_t* last = nullptr;   // [vocabulary], one past the last; set where a row is used
};

struct IndexUsesRooms {
  std::int64_t* orders[2] = {};    // [indices]
  std::int64_t* counts = nullptr;  // [256, tiles]
  std::int64_t* first = nullptr;   // [vocabulary]
  std::int64_t* last = nullptr;    // [vocabulary]
};
IndexUsesRooms index_uses_rooms(std::int64_t indices, std::int64_t vocabulary, Arena& arena);

/// Indices outside 0 ... vocabulary - 1, and those that are `padding`, use no row.
struct IndexUsesQuery {
  ConstTensorView indices{};  // [n], at most as many as the rooms are for
  std::int64_t vocabulary = 0, padding = -1;
};
IndexUses find_index_uses(const IndexUsesQuery& query, const IndexUsesRooms& rooms, cudaStream_t stream);

}  // namespace everglow::cuda
