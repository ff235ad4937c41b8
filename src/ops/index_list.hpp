// Lists of indices (targets of a loss, words of an embedding): folded to one dimension, read as i64, and checked on a CPU.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace everglow {

/// i32 or i64 indices of any shape as one strided dimension. Throws where the dtype or device differs, the memory is missing or
/// the strides do not fold.
ConstTensorView index_list(std::string_view where, std::string_view argument, const ConstTensorView& view, Device device);

/// Each index of a list in CPU memory must lie in [0, limit) or be `extra` where that is given; the text names the first that does
/// not. Indices on another device are not read.
void require_indices(std::string_view where, std::string_view argument, const ConstTensorView& list, std::int64_t limit,
                     std::optional<std::int64_t> extra = {});

}  // namespace everglow
