// One index of a list of i32 or i64.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>

namespace everglow {

inline std::int64_t read_index(const ConstTensorView& list, std::int64_t i) {
  const std::int64_t at = i * list.strides[0];
  return list.dtype == DType::i32 ? static_cast<const std::int32_t*>(list.data)[at]
                                  : static_cast<const std::int64_t*>(list.data)[at];
}

}  // namespace everglow
