// Activations and their slopes in f32. Arguments, exponentials and quotients round a few times each, as the bounds of
// cases/proof/pointwise.cpp count them: no fast intrinsics here.
#pragma once

#include <everglow/linear.hpp>

namespace everglow::cuda {

inline constexpr float root_two_over_pi = 0.797884561F, inverse_root_two = 0.707106781F, inverse_root_two_pi = 0.398942280F;

__device__ inline float gelu_argument(float z) { return root_two_over_pi * (z + 0.044715F * z * z * z); }

__device__ inline float activate(Activation activation, float z) {
  switch (activation) {
    case Activation::relu:
      return z < 0 ? 0 : z;  // NaN stays NaN
    case Activation::gelu_tanh:
      return 0.5F * z * (1 + tanhf(gelu_argument(z)));
    case Activation::gelu_erf:
      return 0.5F * z * erfcf(-z * inverse_root_two);
    case Activation::silu:
      return z / (1 + expf(-z));
    case Activation::none:
      break;
  }
  return z;
}

__device__ inline float activation_slope(Activation activation, float z) {
  switch (activation) {
    case Activation::relu:
      return z > 0 ? 1 : 0;
    case Activation::gelu_tanh: {
      const float t = tanhf(gelu_argument(z));
      const float square = fminf(z * z, 1e10F);  // 1 - t² is 0 long before; infinity times 0 would be NaN
      return 0.5F * (1 + t) + 0.5F * z * (1 - t * t) * root_two_over_pi * (1 + 3 * 0.044715F * square);
    }
    case Activation::gelu_erf:
      return 0.5F * erfcf(-z * inverse_root_two) + z * expf(-0.5F * z * z) * inverse_root_two_pi;
    case Activation::silu: {
      const float s = 1 / (1 + expf(-z));
      return s * (1 + z * (1 - s));
    }
    case Activation::none:
      break;
  }
  return 1;
}

}  // namespace everglow::cuda
