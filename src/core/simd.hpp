// Vectors of f32 in the compiler's own vector types, and the functions a layer needs on them. Included only by the sources of an
// isa/ folder, which the build compiles once for each instruction set with EVERGLOW_ISA_NAMESPACE naming the namespace. Everything
// here has internal linkage, so the linker never shares code between instruction sets.
#pragma once

#include <everglow/storage.hpp>

#include <cstdint>

#if defined(__AVX512F__)
#define EVERGLOW_LANES 16
#elif defined(__AVX__)
#define EVERGLOW_LANES 8
#else
#define EVERGLOW_LANES 4
#endif

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int lanes = EVERGLOW_LANES;  // floats in one vector
using vfloat = float __attribute__((vector_size(4 * EVERGLOW_LANES)));
using vint = std::int32_t __attribute__((vector_size(4 * EVERGLOW_LANES)));
using vuint = std::uint32_t __attribute__((vector_size(4 * EVERGLOW_LANES)));
using vfloat_unaligned = float __attribute__((vector_size(4 * EVERGLOW_LANES), aligned(4), may_alias));

inline vfloat splat(float value) { return value - vfloat{}; }
inline vuint splat_bits(std::uint32_t bits) { return bits - vuint{}; }
inline vfloat load(const float* p) { return *reinterpret_cast<const vfloat_unaligned*>(p); }
inline void store(float* p, vfloat value) { *reinterpret_cast<vfloat_unaligned*>(p) = value; }

/// The first n elements (n < lanes); the rest is `filler`. Nothing past p[n-1] is read.
inline vfloat load_part(const float* p, int n, float filler = 0) {
  float buffer[lanes];
  for (int i = 0; i < lanes; ++i) buffer[i] = i < n ? p[i] : filler;
  return load(buffer);
}
inline void store_part(float* p, vfloat value, int n) {
  float buffer[lanes];
  store(buffer, value);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

// Storage of 16 bits: a load widens exactly, a store rounds to nearest even, as to_float, to_half and to_bfloat16 do, and NaN stays
// a quiet NaN. With f16c the machine converts f16; elsewhere integer vectors do.
using vshort = std::uint16_t __attribute__((vector_size(2 * EVERGLOW_LANES)));
using vshort_unaligned = std::uint16_t __attribute__((vector_size(2 * EVERGLOW_LANES), aligned(2), may_alias));

inline vuint load_bits(const void* p) { return __builtin_convertvector(*static_cast<const vshort_unaligned*>(p), vuint); }
inline void store_bits(void* p, vuint bits) { *static_cast<vshort_unaligned*>(p) = __builtin_convertvector(bits, vshort); }

inline vfloat load(const BFloat16* p) { return reinterpret_cast<vfloat>(load_bits(p) << 16); }
inline void store(BFloat16* p, vfloat value) {
  const vuint bits = reinterpret_cast<vuint>(value);
  const vuint rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  store_bits(p, (value == value ? rounded : bits | 0x400000U) >> 16);
}

#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__)
using vshort_signed = short __attribute__((vector_size(2 * EVERGLOW_LANES), may_alias));
inline vfloat load(const Half* p) {
  const auto bits = reinterpret_cast<vshort_signed>(*reinterpret_cast<const vshort_unaligned*>(p));
#if EVERGLOW_LANES == 16
  return __builtin_ia32_vcvtph2ps512_mask(bits, vfloat{}, -1, 4);  // all lanes, the rounding of the thread
#else
  return __builtin_ia32_vcvtph2ps256(bits);
#endif
}
inline void store(Half* p, vfloat value) {
#if EVERGLOW_LANES == 16
  const auto bits = __builtin_ia32_vcvtps2ph512_mask(value, 0, vshort_signed{}, -1);  // 0: to nearest even
#else
  const auto bits = __builtin_ia32_vcvtps2ph256(value, 0);
#endif
  *reinterpret_cast<vshort_unaligned*>(p) = reinterpret_cast<vshort>(bits);
}
#else
inline vfloat load(const Half* p) {
  const vuint bits = load_bits(p);
  const vuint sign = (bits & 0x8000U) << 16, magnitude = (bits & 0x7fffU) << 13;
  // A product with 2^112 moves the exponent to that of f32, subnormals included; infinities and NaN keep all its bits set.
  const vuint moved = reinterpret_cast<vuint>(reinterpret_cast<vfloat>(magnitude) * 0x1p112F);
  const vuint special = magnitude | 0x7f800000U | (magnitude > 0x0f800000U ? splat_bits(0x400000U) : splat_bits(0));
  return reinterpret_cast<vfloat>((magnitude >= 0x0f800000U ? special : moved) | sign);
}
inline void store(Half* p, vfloat value) {
  const vuint bits = reinterpret_cast<vuint>(value);
  const vuint magnitude = bits & 0x7fffffffU;
  const vuint rounded = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
  // Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
  const vuint small = reinterpret_cast<vuint>(reinterpret_cast<vfloat>(magnitude) + 0.5F) - 0x3f000000U;
  vuint half = magnitude < 0x38800000U ? small : rounded;
  half = magnitude >= 0x477ff000U ? splat_bits(0x7c00U) : half;  // rounds to 65536 or more
  half = magnitude > 0x7f800000U ? 0x7e00U | ((magnitude >> 13) & 0x1ffU) : half;
  store_bits(p, half | ((bits >> 16) & 0x8000U));
}
#endif

/// The first n elements (n < lanes) of storage of 16 bits; the rest is `filler`. Nothing past p[n-1] is read or written.
template <class Short>
inline vfloat load_part(const Short* p, int n, float filler = 0) {
  Short buffer[lanes];
  float whole[lanes];
  for (int i = 0; i < lanes; ++i) buffer[i].bits = 0;
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  store(whole, load(buffer));
  for (int i = n; i < lanes; ++i) whole[i] = filler;
  return load(whole);
}
template <class Short>
inline void store_part(Short* p, vfloat value, int n) {
  Short buffer[lanes];
  store(buffer, value);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

#if defined(__AVX512BF16__)
// Words: two bf16 of consecutive k, the first in the lower half. The two products are added to a sum one after the other, each sum
// rounded to nearest even; which comes first is not said. Subnormal operands and sums count as zero, whatever the thread's modes.
using vuint_unaligned = std::uint32_t __attribute__((vector_size(4 * EVERGLOW_LANES), aligned(2), may_alias));
inline vuint load_words(const void* p) { return *static_cast<const vuint_unaligned*>(p); }
inline vfloat dot_words(vfloat sum, vuint a, vuint b) {
  // The types of the compiler's own function for it change from GCC 12 to 13.
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
inline vfloat first_of_words(vuint words) { return reinterpret_cast<vfloat>(words << 16); }
inline vfloat second_of_words(vuint words) { return reinterpret_cast<vfloat>(words & 0xffff0000U); }
#endif

inline vfloat vmax(vfloat a, vfloat b) { return a > b ? a : b; }  // b where either is NaN
inline vfloat vmin(vfloat a, vfloat b) { return a < b ? a : b; }

inline float sum_lanes(vfloat v) {
  float buffer[lanes];
  store(buffer, v);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) buffer[i] += buffer[i + width];
  return buffer[0];
}
inline float max_lanes(vfloat v) {
  float buffer[lanes];
  store(buffer, v);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) buffer[i] = buffer[i] > buffer[i + width] ? buffer[i] : buffer[i + width];
  return buffer[0];
}

#if EVERGLOW_LANES == 16
inline vfloat interleave_low(vfloat a, vfloat b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline vfloat interleave_high(vfloat a, vfloat b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif EVERGLOW_LANES == 8
inline vfloat interleave_low(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline vfloat interleave_high(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
inline vfloat interleave_low(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline vfloat interleave_high(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

/// One step of a transpose: rows i and i + lanes/2 interleave, and log2(lanes) steps transpose.
inline void transpose_step(const vfloat (&from)[lanes], vfloat (&to)[lanes]) {
#pragma GCC unroll 8
  for (int i = 0; i < lanes / 2; ++i) {
    to[2 * i] = interleave_low(from[i], from[i + lanes / 2]);
    to[2 * i + 1] = interleave_high(from[i], from[i + lanes / 2]);
  }
}
/// A square of vectors, in place.
inline void transpose(vfloat (&rows)[lanes]) {
  vfloat other[lanes];
  transpose_step(rows, other);
  transpose_step(other, rows);
  if constexpr (lanes == 16) {
    transpose_step(rows, other);
    transpose_step(other, rows);
  } else if constexpr (lanes == 8) {
    transpose_step(rows, other);
#pragma GCC unroll 8
    for (int i = 0; i < lanes; ++i) rows[i] = other[i];
  }
}

constexpr float exp_magic = 12582912.0F;  // 1.5 · 2^23: adding it rounds to an integer in the low bits

/// e^r of x = n ln 2 + r with |r| <= ln 2 / 2, by a polynomial of degree 6 (coefficients: the minimax set of Cephes' expf), and
/// `shifted`, n + exp_magic.
inline vfloat exp_reduced(vfloat x, vfloat& shifted) {
  shifted = x * 1.44269504F + exp_magic;
  const vfloat n = shifted - exp_magic;
  vfloat r = x - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  vfloat p = splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  return p * (r * r) + r + 1.0F;
}

/// tanh x for |x| < 0.625: the odd polynomial of Cephes' tanhf.
inline vfloat tanh_near_zero(vfloat x) {
  const vfloat z = x * x;
  vfloat p = splat(-5.70498872745e-3F);
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  return p * z * x + x;
}

/// e^x within 2 units in the last place; 0 below -87.3, +inf above 88.7, NaN for NaN.
inline vfloat vexp(vfloat x) {
  const vfloat too_low = splat(-87.33654F);
  const vfloat too_high = splat(88.72283F);
  vfloat bounded = x < too_low ? too_low : x;  // the order of the comparisons keeps NaN
  bounded = bounded > too_high ? too_high : bounded;
  vfloat shifted;
  const vfloat p = exp_reduced(bounded, shifted);
  // 2^n in two factors, so that n = 128 does not overflow before the product does
  const vint k = reinterpret_cast<vint>(shifted) - reinterpret_cast<vint>(splat(exp_magic));
  const vint half = k >> 1;
  const vfloat first = reinterpret_cast<vfloat>((half + 127) << 23);
  const vfloat second = reinterpret_cast<vfloat>((k - half + 127) << 23);
  const vfloat value = p * first * second;
  const vfloat low_fixed = x < too_low ? splat(0.0F) : value;
  return x > too_high ? splat(__builtin_inff()) : low_fixed;
}

/// 1 / (1 + e^-x), in [0, 1].
inline vfloat vsigmoid(vfloat x) { return 1.0F / (1.0F + vexp(-x)); }

/// tanh x: a polynomial near zero, 1 - 2 / (e^2|x| + 1) with the sign of x above it.
inline vfloat vtanh(vfloat x) {
  const vfloat magnitude = x < 0.0F ? -x : x;
  const vfloat positive = 1.0F - 2.0F / (vexp(magnitude + magnitude) + 1.0F);
  const vfloat far = x < 0.0F ? -positive : positive;
  return magnitude < 0.625F ? tanh_near_zero(x) : far;
}

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
