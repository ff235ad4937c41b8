// The functions of core/simd.hpp on arrays.
#include "core/simd.hpp"

#include "simd_functions.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

void exp_of(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) store(y + i, vexp(load(x + i)));
}
void sigmoid_of(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) store(y + i, vsigmoid(load(x + i)));
}
void tanh_of(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) store(y + i, vtanh(load(x + i)));
}
void load_part_of(const float* from, int n, float filler, float* whole) { store(whole, load_part(from, n, filler)); }
void store_part_of(float* to, const float* whole, int n) { store_part(to, load(whole), n); }
float sum_of(const float* whole) { return sum_lanes(load(whole)); }
float max_of(const float* whole) { return max_lanes(load(whole)); }

}  // namespace

extern const SimdFunctions simd_functions;
const SimdFunctions simd_functions{lanes, exp_of, sigmoid_of, tanh_of, load_part_of, store_part_of, sum_of, max_of};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
