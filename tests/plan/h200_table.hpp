// Products measured on one H200 (PyTorch 2.11, cuBLASLt of CUDA 13.0, f16), in TFLOP/s; 0: not measured.
#pragma once

#include <cstdint>

namespace everglow::test {

struct MeasuredLinear {
  std::int64_t batch, inputs, outputs;
  double tflops[3];  // forward, activation gradient, weight gradient
  bool aligned;      // every row a multiple of 16 bytes
};

inline constexpr MeasuredLinear h200_table[] = {
    {4096, 1024, 4096, {669, 729, 695}, true},   {512, 1024, 4096, {221, 237, 211}, true},
    {2048, 4096, 4096, {750, 660, 623}, true},   {16384, 1024, 32320, {654, 703, 686}, true},
    {5120, 1024, 33708, {239, 262, 248}, false}, {5120, 1024, 33712, {720, 695, 673}, true},
    {5120, 1024, 33792, {609, 680, 661}, true},  {4095, 1024, 4096, {664, 709, 668}, true},
    {4096, 1023, 4097, {103, 143, 152}, false},  {64, 1024, 4096, {26, 0, 0}, true},
    {16, 4096, 14336, {59, 0, 0}, true},         {1, 4096, 4096, {1.3, 0, 0}, true},
};

}  // namespace everglow::test
