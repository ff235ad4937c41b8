// Arithmetic instructions that the toolkit wraps only with more around them.
#pragma once

namespace everglow::cuda::ptx {

/// 2^x within 2 units in the last place; results below 2^-126 are 0.
__device__ inline float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

}  // namespace everglow::cuda::ptx
