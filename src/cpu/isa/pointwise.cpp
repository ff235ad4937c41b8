// The loops of pointwise.hpp. Whole vectors first, then one part of a vector; each vector is read before it is written, so that
// an operation may run in place.
#include "cpu/isa/pointwise.hpp"

#include "core/mutant.hpp"
#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

using vuint_unaligned = std::uint32_t __attribute__((vector_size(4 * EVERGLOW_LANES), aligned(4), may_alias));

template <class F>
void map(const PointwiseOperands& o, const F& f) {
  std::int64_t i = 0;
  for (; i + lanes <= o.n; i += lanes) store(o.y + i, f(load(o.a + i)));
  const int rest = static_cast<int>(o.n - i);
  if (rest > 0) store_part(o.y + i, f(load_part(o.a + i, rest)), rest);
}

template <class F>
void map_two(const PointwiseOperands& o, const F& f) {
  std::int64_t i = 0;
  for (; i + lanes <= o.n; i += lanes) store(o.y + i, f(load(o.a + i), load(o.b + i)));
  const int rest = static_cast<int>(o.n - i);
  if (rest > 0) store_part(o.y + i, f(load_part(o.a + i, rest), load_part(o.b + i, rest)), rest);
}

/// Cephes' erfcf for x >= 1 over its factor e^(-x^2) / x, as a polynomial in 1/x^2: one set for 1 ... 2 and one above.
inline vfloat erfc_tail(vfloat q, vfloat x) {
  vfloat low = splat(2.326819970068386E-2F);
  low = low * q - 1.387039388740657E-1F;
  low = low * q + 3.687424674597105E-1F;
  low = low * q - 5.824733027278666E-1F;
  low = low * q + 6.210004621745983E-1F;
  low = low * q - 4.944515323274145E-1F;
  low = low * q + 3.404879937665872E-1F;
  low = low * q - 2.741127028184656E-1F;
  low = low * q + 5.638259427386472E-1F;
  vfloat high = splat(-1.047766399936249E+1F);
  high = high * q + 1.297719955372516E+1F;
  high = high * q - 7.495518717768503E+0F;
  high = high * q + 2.921019019210786E+0F;
  high = high * q - 1.015265279202700E+0F;
  high = high * q + 4.218463358204948E-1F;
  high = high * q - 2.820767439740514E-1F;
  high = high * q + 5.641895067754075E-1F;
  return x < 2.0F ? low : high;
}

/// erfc x, so that the left tail of the normal distribution keeps its digits.
inline vfloat verfc(vfloat x) {
  const vfloat magnitude = x < 0.0F ? -x : x;
  const vfloat z = x * x;
  vfloat p = splat(7.853861353153693E-5F);
  p = p * z - 8.010193625184903E-4F;
  p = p * z + 5.188327685732524E-3F;
  p = p * z - 2.685381193529856E-2F;
  p = p * z + 1.128358514861418E-1F;
  p = p * z - 3.761262582423300E-1F;
  p = p * z + 1.128379165726710E+0F;
  const vfloat near = 1.0F - p * x;
  const vfloat inverse = 1.0F / magnitude;
  const vfloat tail = vexp(-z) * inverse * erfc_tail(inverse * inverse, magnitude);
  const vfloat far = x < 0.0F ? 2.0F - tail : tail;
  return magnitude < 1.0F ? near : far;
}

/// The normal distribution function.
inline vfloat normal(vfloat z) { return 0.5F * verfc(z * -0.707106781F); }

constexpr float root_two_over_pi = 0.797884561F;
inline vfloat gelu_argument(vfloat z) { return root_two_over_pi * (z + 0.044715F * z * z * z); }

template <class F>
void visit_activation(ActivationKernel activation, const F& f) {
  switch (activation) {
    case ActivationKernel::relu:
      return f([](vfloat z) { return z < 0.0F ? splat(0) : z; }, [](vfloat z) { return z > 0.0F ? splat(1) : splat(0); });
    case ActivationKernel::gelu_tanh:
      return f([](vfloat z) { return 0.5F * z * (1.0F + vtanh(gelu_argument(z))); },
               [](vfloat z) {
                 const vfloat t = vtanh(gelu_argument(z));
                 const vfloat square = vmin(z * z, splat(1e10F));  // 1 - t² is 0 long before; infinity times 0 would be NaN
                 return 0.5F * (1.0F + t) +
                        dropped("pointwise.gelu_tanh_slope_lacks_a_term",
                                0.5F * z * (1.0F - t * t) * root_two_over_pi * (1.0F + 3.0F * 0.044715F * square));
               });
    case ActivationKernel::gelu_erf:
      return f(
          [](vfloat z) { return z * normal(z); },
          [](vfloat z) { return normal(z) + flipped("pointwise.gelu_erf_slope_sign", z * vexp(-0.5F * z * z) * 0.398942280F); });
    case ActivationKernel::silu:
      return f([](vfloat z) { return z * vsigmoid(z); },
               [](vfloat z) {
                 const vfloat s = vsigmoid(z);
                 return s * (1.0F + dropped("pointwise.silu_slope_lacks_a_term", z * (1.0F - s)));
               });
  }
}

void add(const PointwiseOperands& o) {
  map_two(o, [](vfloat a, vfloat b) { return a + b; });
}
void multiply(const PointwiseOperands& o) {
  map_two(o, [](vfloat a, vfloat b) { return a * b; });
}
void scale(const PointwiseOperands& o, float factor) {
  map(o, [factor](vfloat a) { return a * factor; });
}
void fill(const PointwiseOperands& o, float value) {
  for (std::int64_t i = 0; i < o.n; ++i) o.y[i] = value;
}
void activation(const PointwiseOperands& o, ActivationKernel kernel) {
  visit_activation(kernel, [&](const auto& value, const auto&) { map(o, value); });
}
void activation_gradient(const PointwiseOperands& o, ActivationKernel kernel) {
  visit_activation(kernel, [&](const auto&, const auto& slope) { map_two(o, [&](vfloat a, vfloat b) { return b * slope(a); }); });
}

void dropout(const PointwiseOperands& o, const std::uint32_t* words, std::uint32_t threshold, float scale) {
  const vuint limit = splat_bits(threshold);
  const auto kept = [&](vuint word, vfloat a) { return word >= limit ? a * scale : splat(0); };
  std::int64_t i = 0;
  for (; i + lanes <= o.n; i += lanes) {
    const vfloat value = kept(*reinterpret_cast<const vuint_unaligned*>(words + i), load(o.a + i));
    store(o.y + i, o.b == nullptr ? value : value + load(o.b + i));
  }
  const int rest = static_cast<int>(o.n - i);
  if (rest == 0) return;
  vuint word{};
  for (int k = 0; k < rest; ++k) word[k] = words[i + k];
  const vfloat value = kept(word, load_part(o.a + i, rest));
  store_part(o.y + i, o.b == nullptr ? value : value + load_part(o.b + i, rest), rest);
}

// Words of several counters side by side, each word in the low half of a 64-bit element. Where the instruction set has no 64-bit
// vector product, emulating it costs more than the scalar one, so that an element is then a plain integer.
#if defined(__AVX512DQ__)
using Words = std::uint64_t __attribute__((vector_size(64)));

inline Words consecutive(std::uint64_t first) { return first + Words{0, 1, 2, 3, 4, 5, 6, 7}; }
inline void write_words(std::uint32_t* out, const Words (&c)[4]) {
  using Unaligned = std::uint64_t __attribute__((vector_size(64), aligned(4), may_alias));
  const Words front = c[0] | c[1] << 32, back = c[2] | c[3] << 32;
  *reinterpret_cast<Unaligned*>(out) = __builtin_shufflevector(front, back, 0, 8, 1, 9, 2, 10, 3, 11);
  *reinterpret_cast<Unaligned*>(out + 16) = __builtin_shufflevector(front, back, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
using Words = std::uint64_t;

inline Words consecutive(std::uint64_t first) { return first; }
inline void write_words(std::uint32_t* out, const Words (&c)[4]) {
  for (int w = 0; w < 4; ++w) out[w] = static_cast<std::uint32_t>(c[w]);
}
#endif
constexpr int counters_at_once = sizeof(Words) / sizeof(std::uint64_t);
constexpr int chains = 2;  // independent of each other, to hide the latency of the products
static_assert(philox_batch % (chains * counters_at_once) == 0, "a batch is a whole number of steps of the loop");

inline void philox_round(Words (&c)[4], std::uint32_t k0, std::uint32_t k1) {
  const Words a = c[0] * 0xD2511F53U, b = c[2] * 0xCD9E8D57U;
  c[0] = (b >> 32) ^ c[1] ^ k0;
  c[1] = b & 0xFFFFFFFFU;
  c[2] = (a >> 32) ^ c[3] ^ k1;
  c[3] = a & 0xFFFFFFFFU;
}

void philox(std::uint64_t key, std::uint64_t first, std::int64_t counters, std::uint32_t* words) {
  for (std::int64_t done = 0; done < counters; done += chains * counters_at_once) {
    Words c[chains][4] = {};
    for (int chain = 0; chain < chains; ++chain) {
      const Words counter = consecutive(first + static_cast<std::uint64_t>(done + chain * counters_at_once));
      c[chain][0] = counter & 0xFFFFFFFFU;
      c[chain][1] = counter >> 32;
    }
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int chain = 0; chain < chains; ++chain) philox_round(c[chain], k0, k1);
      k0 += 0x9E3779B9U, k1 += 0xBB67AE85U;
    }
    for (int chain = 0; chain < chains; ++chain) write_words(words + (done + chain * counters_at_once) * 4, c[chain]);
  }
}

}  // namespace

extern const PointwiseKernels pointwise_kernels{.add = add,
                                                .multiply = multiply,
                                                .scale = scale,
                                                .fill = fill,
                                                .activation = activation,
                                                .activation_gradient = activation_gradient,
                                                .dropout = dropout,
                                                .philox = philox};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
