// FlashAttention-2, the gradient of a bias, bf16.
#include "cuda/sm80/attention_flash2_launch.cuh"

namespace everglow::cuda {

template void launch_flash2_bias<__nv_bfloat16>(const AttentionParams&, const FlashBackwardGrid&, const FlashBiasGrid&, int,
                                                cudaStream_t);

}  // namespace everglow::cuda
