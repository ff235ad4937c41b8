// FlashAttention-2, backward, f16, the plain variant.
#include "cuda/sm80/attention_flash2_launch.cuh"

namespace everglow::cuda {

template void launch_flash2_backward<__half, false>(const AttentionParams&, const FlashBackwardGrid&, int, cudaStream_t);

}  // namespace everglow::cuda
