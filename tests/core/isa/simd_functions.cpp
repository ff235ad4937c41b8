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
template <class Short>
void widen(const Short* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) store(to + i, load(from + i));
}
template <class Short>
void round(const float* from, Short* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) store(to + i, load(from + i));
}
template <class Short>
void widen_part(const Short* from, int n, float filler, float* whole) {
  store(whole, load_part(from, n, filler));
}
template <class Short>
void round_part(Short* to, const float* whole, int n) {
  store_part(to, load(whole), n);
}
float sum_of(const float* whole) { return sum_lanes(load(whole)); }
float max_of(const float* whole) { return max_lanes(load(whole)); }

}  // namespace

extern const SimdFunctions simd_functions;
const SimdFunctions simd_functions{lanes,
                                   exp_of,
                                   sigmoid_of,
                                   tanh_of,
                                   load_part_of,
                                   store_part_of,
                                   sum_of,
                                   max_of,
                                   {widen<Half>, round<Half>, widen_part<Half>, round_part<Half>},
                                   {widen<BFloat16>, round<BFloat16>, widen_part<BFloat16>, round_part<BFloat16>}};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
