// The functions of core/simd.hpp on arrays, one table for each instruction set, for the tests. Plain pointers only.
#pragma once

#include <everglow/storage.hpp>

#include <cstdint>

namespace everglow {

template <class Short>
struct SimdStorage {
  void (*widen)(const Short* from, float* to, std::int64_t n);  // n: a multiple of lanes
  void (*round)(const float* from, Short* to, std::int64_t n);
  void (*widen_part)(const Short* from, int n, float filler, float* whole);  // whole [lanes]
  void (*round_part)(Short* to, const float* whole, int n);
};

struct SimdFunctions {
  int lanes;
  void (*exp)(const float* x, float* y, std::int64_t n);  // n: a multiple of lanes
  void (*sigmoid)(const float* x, float* y, std::int64_t n);
  void (*tanh)(const float* x, float* y, std::int64_t n);
  void (*load_part)(const float* from, int n, float filler, float* whole);  // whole [lanes]
  void (*store_part)(float* to, const float* whole, int n);
  float (*sum_lanes)(const float* whole);
  float (*max_lanes)(const float* whole);
  SimdStorage<Half> half;
  SimdStorage<BFloat16> bfloat16;
};

namespace portable {
extern const SimdFunctions simd_functions;
}
namespace avx2 {
extern const SimdFunctions simd_functions;
}
namespace avx512 {
extern const SimdFunctions simd_functions;
}

}  // namespace everglow
