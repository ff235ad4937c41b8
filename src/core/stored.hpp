// Matrices as they are stored: any of the floating types, any strides. Plain, for the sources in isa/ folders and their callers.
#pragma once

#include <cstdint>

namespace everglow {

/// Begins in the order of DType.
enum class Element : std::uint8_t { f32, f16, bf16 };

/// Element (row, column) lies at data[row * stride + column * step].
struct Stored {
  const void* data = nullptr;
  Element element = Element::f32;
  std::int64_t stride = 0;
  std::int64_t step = 1;
};
struct StoredOut {
  void* data = nullptr;
  Element element = Element::f32;
  std::int64_t stride = 0;
  std::int64_t step = 1;
};

}  // namespace everglow
