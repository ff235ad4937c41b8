// Activations and their gradients, vectorised. All are written with decaying exponentials of |z|, so that both tails keep their
// relative precision and nothing overflows.
#include "cpu/linear_kernels.hpp"

#include "core/mutant.hpp"
#include "core/stored_simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

inline vfloat magnitude(vfloat x) { return x < 0.0F ? -x : x; }

/// The logistic function s of w, and its slope s (1 - s).
struct Logistic {
  vfloat value, slope;
};
inline Logistic logistic(vfloat w) {
  const vfloat decay = vexp(-magnitude(w));
  const vfloat inverse = 1.0F / (1.0F + decay);
  return {w < 0.0F ? decay * inverse : inverse, decay * inverse * inverse};
}

/// The standard normal distribution function Φ of z, and exp(-z²/2). Φ(-t) = exp(-t²/2) q P(x) with q = 1 / (1 + 0.27 t) and x = q
/// mapped to [-1, 1] for t in [0, 13.3]; P is the Chebyshev interpolant of degree 8, relative error 2.8e-8.
struct Normal {
  vfloat value, decay;
};
inline Normal normal(vfloat z) {
  const vfloat t = magnitude(z);
  const vfloat q = 1.0F / (1.0F + 0.27F * t);
  const vfloat x = q * 2.556947925F - 1.556947925F;
  vfloat p = splat(1.58361872e-05F);
  p = p * x + 2.03666641e-05F;
  p = p * x - 2.45751089e-04F;
  p = p * x - 6.18346559e-04F;
  p = p * x + 2.82165618e-03F;
  p = p * x + 2.22447254e-02F;
  p = p * x + 7.43563622e-02F;
  p = p * x + 1.59881055e-01F;
  p = p * x + 2.41524115e-01F;
  const vfloat decay = vexp(-0.5F * z * z);
  const vfloat tail = decay * q * p;
  return {z < 0.0F ? tail : 1.0F - tail, decay};
}

struct None {
  static vfloat value(vfloat z) { return z; }
  static vfloat slope(vfloat, vfloat dy) { return dy; }
};
struct Relu {
  static vfloat value(vfloat z) { return z < 0.0F ? splat(0.0F) : z; }  // keeps NaN
  static vfloat slope(vfloat z, vfloat dy) { return z <= 0.0F ? splat(0.0F) : flipped("linear.cpu_relu_slope", dy); }
};
/// 0.5 z (1 + tanh u) = z s(2u), u = sqrt(2/π) (z + 0.044715 z³).
struct GeluTanh {
  static constexpr float twice = 1.5957691216F, cubic = 0.044715F;  // 2 sqrt(2/π)
  static vfloat value(vfloat z) { return z * logistic(twice * z * (1.0F + cubic * z * z)).value; }
  static vfloat slope(vfloat z, vfloat dy) {
    const Logistic s = logistic(twice * z * (1.0F + cubic * z * z));
    const vfloat bounded = vmin(z * z, splat(1e10F));  // the slope of s is 0 long before; infinity times 0 would be NaN
    return dy * (s.value + dropped("linear.cpu_gelu_tanh_second_term", z * s.slope * (twice * (1.0F + 3 * cubic * bounded))));
  }
};
struct GeluErf {
  static vfloat value(vfloat z) { return z * normal(z).value; }
  static vfloat slope(vfloat z, vfloat dy) {
    const Normal n = normal(z);
    return dy * (n.value + flipped("linear.cpu_gelu_erf_density", z * n.decay * 0.3989422804F));  // 1 / sqrt(2π)
  }
};
struct Silu {
  static vfloat value(vfloat z) { return z * logistic(z).value; }
  static vfloat slope(vfloat z, vfloat dy) {
    const Logistic s = logistic(z);
    return dy * (s.value + flipped("linear.cpu_silu_second_term", z * s.slope));
  }
};

template <class Function>
void activate_with(const ActivationBlock& t) {
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t c = 0; c < t.columns; c += lanes) {
      const int count = vector_part(t.columns, c);
      write(t.out, r, c, Function::value(read(t.z, r, c, count)), count);
    }
}

template <class Function, bool needs_z>
void gradient_with(const ActivationBlock& t) {
  for (std::int64_t c = 0; t.sums != nullptr && c < t.columns; ++c) t.sums[c] = 0;
  for (std::int64_t r = 0; r < t.rows; ++r)
    for (std::int64_t c = 0; c < t.columns; c += lanes) {
      const int count = vector_part(t.columns, c);
      const vfloat dy = read(t.dy, r, c, count);
      const vfloat dz = needs_z ? Function::slope(read(t.z, r, c, count), dy) : dy;
      if (t.out.data != nullptr) write(t.out, r, c, dz, count);
      if (t.sums == nullptr) continue;
      const vfloat before = dropped("linear.cpu_dbias_last_row_alone", read_elements(t.sums + c, 1, count));
      write_elements(t.sums + c, 1, before + dz, count);
    }
}

void bias_gradient(const BiasGradient& t) {
  const Stored before{t.out.data, t.out.element, t.out.stride, t.out.step};
  for (std::int64_t c = 0; c < t.columns; c += lanes) {
    const int count = vector_part(t.columns, c);
    vfloat sum = splat(0.0F);
    if (t.accumulate && !mutant("linear.cpu_dbias_forgets")) sum = read(before, 0, c, count);
    for (std::int64_t part = 0; part < t.parts; ++part)
      sum += flipped("linear.cpu_dbias_sign", read_elements(t.sums + part * t.columns + c, 1, count));
    write(t.out, 0, c, sum, count);
  }
}

void activate(const ActivationBlock& t) {
  switch (t.kind) {
    case ActivationKind::none:
      return activate_with<None>(t);
    case ActivationKind::relu:
      return activate_with<Relu>(t);
    case ActivationKind::gelu_tanh:
      return activate_with<GeluTanh>(t);
    case ActivationKind::gelu_erf:
      return activate_with<GeluErf>(t);
    case ActivationKind::silu:
      return activate_with<Silu>(t);
  }
}

void gradient(const ActivationBlock& t) {
  switch (t.kind) {
    case ActivationKind::none:
      return gradient_with<None, false>(t);
    case ActivationKind::relu:
      return gradient_with<Relu, true>(t);
    case ActivationKind::gelu_tanh:
      return gradient_with<GeluTanh, true>(t);
    case ActivationKind::gelu_erf:
      return gradient_with<GeluErf, true>(t);
    case ActivationKind::silu:
      return gradient_with<Silu, true>(t);
  }
}

}  // namespace

const LinearKernels linear_kernels{.activate = activate, .gradient = gradient, .bias_gradient = bias_gradient};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
