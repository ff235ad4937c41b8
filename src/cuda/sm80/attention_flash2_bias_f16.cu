// FlashAttention-2, the gradient of a bias, f16.
#include "cuda/sm80/attention_flash2_launch.cuh"

namespace everglow::cuda {

template void launch_flash2_bias<__half>(const AttentionParams&, const FlashBackwardGrid&, const FlashBiasGrid&, int, cudaStream_t);

}  // namespace everglow::cuda
