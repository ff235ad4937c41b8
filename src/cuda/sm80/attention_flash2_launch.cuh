// The launches that attention_flash2.hpp declares, for one storage type and variant each.
#pragma once

#include "cuda/common/device.hpp"
#include "cuda/sm80/attention_flash2.hpp"
#include "cuda/sm80/attention_flash2_bias.cuh"
#include "cuda/sm80/attention_flash2_forward.cuh"
#include "cuda/sm80/attention_flash2_statistics.cuh"

namespace everglow::cuda {

/// f(integral constant) for the columns that flash_columns gives.
template <class F>
void visit_flash_columns(int columns, const F& f) {
  if (columns == 64) return f(std::integral_constant<int, 64>{});
  if (columns == 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

template <class Kernel>
void allow_shared(Kernel* kernel, uint32_t bytes, std::string_view where) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), where);
}
inline unsigned blocks_of(int64_t items, int64_t a_block) { return static_cast<unsigned>((items + a_block - 1) / a_block); }

template <class T, bool general>
void launch_flash2_forward(const AttentionParams& p, const FlashForwardGrid& grid, int columns, cudaStream_t stream) {
  visit_flash_columns(columns, [&](auto constant) {
    using C = FlashForward<T, decltype(constant)::value>;
    constexpr std::string_view where = "attention.forward";
    allow_shared(flash2_forward<C, general>, C::shared_bytes, where);
    const int64_t blocks = static_cast<int64_t>(p.batch) * p.heads * grid.blocks * grid.splits;
    flash2_forward<C, general><<<static_cast<unsigned>(blocks), C::threads, C::shared_bytes, stream>>>(p, grid);
    check_launch(where);
    if (grid.splits == 1) return;
    const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.queries;
    flash2_add_parts<C><<<blocks_of(rows, 8), 256, 0, stream>>>(p, grid);
    check_launch(where);
  });
}

template <class T, bool general>
void launch_flash2_backward(const AttentionParams& p, const FlashBackwardGrid& grid, int columns, cudaStream_t stream) {
  visit_flash_columns(columns, [&](auto constant) {
    using C = FlashBackward<T, decltype(constant)::value>;
    constexpr std::string_view where = "attention.backward";
    const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * grid.padded_queries;
    if (rows > 0) flash2_statistics<T><<<blocks_of(rows, flash_rows_a_block), 32 * flash_rows_a_block, 0, stream>>>(p, grid);
    check_launch(where);
    const int64_t blocks = static_cast<int64_t>(p.batch) * p.kv_heads * grid.blocks;
    const uint32_t shared = C::shared_bytes(grid.stages);
    allow_shared(flash2_backward<C, general>, shared, where);
    if (blocks > 0 && (grid.dq != nullptr || p.dk.data != nullptr || p.dv.data != nullptr))
      flash2_backward<C, general><<<static_cast<unsigned>(blocks), C::threads, shared, stream>>>(p, grid);
    check_launch(where);
    if (grid.dq == nullptr || rows == 0) return;
    flash2_query_gradients<T, C::columns><<<blocks_of(rows * (C::columns / 8), 256), 256, 0, stream>>>(p, grid);
    check_launch(where);
  });
}

template <class T>
void launch_flash2_bias(const AttentionParams& p, const FlashBackwardGrid& grid, const FlashBiasGrid& bias, int columns,
                        cudaStream_t stream) {
  visit_flash_columns(columns, [&](auto constant) {
    using C = FlashBackward<T, decltype(constant)::value>;
    constexpr std::string_view where = "attention.backward";
    const uint32_t shared = C::shared_bytes(grid.stages);
    allow_shared(flash2_bias<C>, shared, where);
    const int64_t blocks = static_cast<int64_t>(bias.key_blocks) * bias.query_blocks * bias.rows * bias.heads;
    flash2_bias<C><<<static_cast<unsigned>(blocks), C::threads, shared, stream>>>(p, grid, bias);
    check_launch(where);
  });
}

}  // namespace everglow::cuda
