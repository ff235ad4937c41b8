// Copies from global to shared memory that a thread starts and waits for later. The toolkit's __pipeline_memcpy_async takes
// constant sizes alone.
#pragma once

#include <cstdint>

namespace everglow::cuda::ptx {

/// 4, 8 or 16 bytes, of which the first `read` are read and the others become 0. Both addresses are multiples of `bytes`.
template <int bytes>
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int read) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(read) : "memory");
}
template <int bytes>
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}
__device__ __forceinline__ void copy_16_async(uint32_t to, const void* from, int read) { copy_async<16>(to, from, read); }
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `newest` groups of this thread's copies are under way.
template <int newest>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

}  // namespace everglow::cuda::ptx
