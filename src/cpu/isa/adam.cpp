// The loops of adam.hpp. The update is a plain loop, since the vector types have no square root; the compiler makes vectors of it.
#include "cpu/isa/adam.hpp"

#include "core/mutant.hpp"
#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int sums = 32;  // independent of each other, and of the instruction set, so that all give the same norm

double sum_of_squares(const float* values, std::int64_t n) {
  double partial[sums] = {};
  std::int64_t i = 0;
  for (; i + sums <= n; i += sums)
    for (int k = 0; k < sums; ++k) {
      const double value = values[i + k];
      partial[k] += value * value;  // a product of two f32 is exact in double
    }
  for (int k = 0; i + k < n; ++k) {
    const double value = values[i + k];
    partial[k] += value * value;
  }
  double total = 0;
  for (int k = 0; k < sums; ++k) total += partial[k];
  return total;
}

void update(const AdamPart& part, const AdamFactors& factors) {
  float* __restrict parameter = part.parameter;
  const float* __restrict gradient = part.gradient;
  float* __restrict m = part.m;
  float* __restrict v = part.v;
  const AdamFactors f = factors;
  for (std::int64_t i = 0; i < part.n; ++i) {
    const float g = gradient[i] * f.gradient;
    const float first = f.keep1 * m[i] + f.take1 * g;
    const float second = dropped("adam.second_moment_forgets", f.keep2 * v[i]) + f.take2 * (g * g);
    m[i] = first;
    v[i] = second;
    parameter[i] -=
        f.rate * first / (__builtin_sqrtf(second) * f.root + f.epsilon) + flipped("adam.decay_sign", f.decay * parameter[i]);
  }
}

}  // namespace

extern const AdamKernels adam_kernels{.sum_of_squares = sum_of_squares, .update = update};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
