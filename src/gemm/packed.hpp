// Our own product, and the thread-local scratch memory that it packs into.
#pragma once

#include "gemm/gemm.hpp"
#include "gemm/kernels.hpp"

namespace everglow {

const GemmKernels& gemm_kernels(Isa isa);
void gemm_own(const Gemm& product, int threads, Isa isa);

/// Floats of the calling thread, kept until it ends; contents are lost when a later call asks for more. `slot` tells buffers apart.
enum class ScratchSlot : std::uint8_t { a, b, c, library };
float* thread_scratch(ScratchSlot slot, std::int64_t floats);

}  // namespace everglow
