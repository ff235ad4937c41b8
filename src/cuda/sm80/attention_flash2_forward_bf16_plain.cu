// FlashAttention-2, forward, bf16, the plain variant.
#include "cuda/sm80/attention_flash2_launch.cuh"

namespace everglow::cuda {

template void launch_flash2_forward<__nv_bfloat16, false>(const AttentionParams&, const FlashForwardGrid&, int, cudaStream_t);

}  // namespace everglow::cuda
