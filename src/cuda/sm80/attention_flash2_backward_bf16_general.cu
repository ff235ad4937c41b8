// FlashAttention-2, backward, bf16, the general variant.
#include "cuda/sm80/attention_flash2_launch.cuh"

namespace everglow::cuda {

template void launch_flash2_backward<__nv_bfloat16, true>(const AttentionParams&, const FlashBackwardGrid&, int, cudaStream_t);

}  // namespace everglow::cuda
