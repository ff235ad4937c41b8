// A list of i32 or i64 indices as kernels read it.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>

namespace everglow::cuda {

struct IndexList {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool wide = false;  // i64

  __device__ std::int64_t operator[](std::int64_t i) const {
    const std::int64_t at = i * stride;
    return wide ? static_cast<const std::int64_t*>(data)[at] : static_cast<const std::int32_t*>(data)[at];
  }
};

inline IndexList index_list_of(const ConstTensorView& list) { return {list.data, list.strides[0], list.dtype == DType::i64}; }

/// Bits into a status; nothing where there is none.
__device__ inline void note(std::uint32_t* status, std::uint32_t bits) {
  if (status != nullptr) atomicOr(status, bits);
}

}  // namespace everglow::cuda
