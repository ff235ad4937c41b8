// Elements of f32, f16 or bf16 as the CPU rows read and write them: arithmetic is f32, and a store rounds to nearest even. Rows are
// contiguous elements at an address.
#pragma once

#include <everglow/tensor.hpp>

#include "core/isa.hpp"
#include "core/isa/convert.hpp"

#include <algorithm>
#include <cstring>

namespace everglow {

class Storage {
 public:
  Storage(DType dtype, Isa isa) : bytes_(static_cast<std::int64_t>(size_of(dtype))) {
    if (dtype == DType::f16)
      kernels_ = &select(isa, portable::half_kernels, avx2::half_kernels, avx512::half_kernels);
    else if (dtype == DType::bf16)
      kernels_ = &select(isa, portable::bfloat16_kernels, avx2::bfloat16_kernels, avx512::bfloat16_kernels);
  }
  /// Whether rows can be used as they are.
  bool is_f32() const { return kernels_ == nullptr; }
  const std::byte* at(const void* row, std::int64_t i) const { return static_cast<const std::byte*>(row) + i * bytes_; }
  std::byte* at(void* row, std::int64_t i) const { return static_cast<std::byte*>(row) + i * bytes_; }

  void widen(const void* from, float* to, std::int64_t n) const {
    if (!is_f32())
      kernels_->widen(from, to, n);
    else if (n > 0)
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  }
  void narrow(const float* from, void* to, std::int64_t n) const {
    if (!is_f32())
      kernels_->narrow(from, to, n);
    else if (n > 0)
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  }
  /// A row as f32: itself, or a copy in `room`. Null stays null.
  const float* floats(const void* row, float* room, std::int64_t n) const {
    if (row == nullptr || is_f32()) return static_cast<const float*>(row);
    widen(row, room, n);
    return room;
  }

  /// to = from, or to + from rounded once.
  void put(const float* from, void* to, std::int64_t n, bool accumulate) const {
    if (!accumulate) return narrow(from, to, n);
    constexpr std::int64_t part = 256;
    float sum[part];
    for (std::int64_t i = 0; i < n; i += part) {
      const std::int64_t count = std::min(part, n - i);
      widen(at(static_cast<const void*>(to), i), sum, count);
      for (std::int64_t j = 0; j < count; ++j) sum[j] += from[i + j];
      narrow(sum, at(to, i), count);
    }
  }

 private:
  const ConvertKernels* kernels_ = nullptr;  // null: f32
  std::int64_t bytes_;
};

}  // namespace everglow
