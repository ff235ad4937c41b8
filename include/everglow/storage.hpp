// Storage types of 16 bits. No more than their bits, so that sources which are compiled once for each instruction set may use them.
#pragma once

#include <cstdint>

namespace everglow {

/// IEEE binary16, bit-compatible with CUDA's __half. Conversions round to nearest even.
struct Half {
  std::uint16_t bits = 0;
};
/// bfloat16, bit-compatible with CUDA's __nv_bfloat16. Conversions round to nearest even.
struct BFloat16 {
  std::uint16_t bits = 0;
};

}  // namespace everglow
