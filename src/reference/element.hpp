// Reading and writing elements of any dtype as double: the reference rows do all arithmetic in double.
#pragma once

#include <everglow/tensor.hpp>

#include <array>
#include <cstdint>

namespace everglow {

inline double read(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[i];
    case DType::f64:
      return static_cast<const double*>(data)[i];
    case DType::f16:
      return to_float(static_cast<const Half*>(data)[i]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::i32:
      return static_cast<const std::int32_t*>(data)[i];
    case DType::i64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[i];
  }
  return 0;
}

inline void write(void* data, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::f64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::f16:
      static_cast<Half*>(data)[i] = to_half(static_cast<float>(value));
      break;
    case DType::bf16:
      static_cast<BFloat16*>(data)[i] = to_bfloat16(static_cast<float>(value));
      break;
    case DType::i32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      break;
    case DType::i64:
      static_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
      break;
    case DType::u8:
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
      break;
  }
}

/// Element (i, j, ...) of a view, by its strides.
template <class Void, class... Index>
std::int64_t offset_of(const BasicTensorView<Void>& view, Index... index) {
  const std::array<std::int64_t, sizeof...(Index)> at{static_cast<std::int64_t>(index)...};
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * view.strides[d];
  return offset;
}
template <class Void, class... Index>
double read(const BasicTensorView<Void>& view, Index... index) {
  return read(view.data, view.dtype, offset_of(view, index...));
}
template <class... Index>
void write(const TensorView& view, double value, Index... index) {
  write(view.data, view.dtype, offset_of(view, index...), value);
}

}  // namespace everglow
