// The costs of a CPU's rows: taken from measured figures, else estimated from clock, vectors, caches and bandwidth; scaled to the
// threads of a plan. And how these rows cut their work, which the rows themselves read from here.
#pragma once

#include <everglow/device.hpp>

#include "plan/gemm.hpp"

#include <cstdint>

namespace everglow::plan {

/// Below this many multiply-adds a library's look-up and call cost as much as the product.
inline constexpr double library_pays = 1 << 18;
/// Rows of the inputs of a recurrent layer from which a library lays out the weights anew; below, they are packed once.
inline constexpr std::int64_t library_rows = 128;
/// Rows of a batch that are worth a thread of their own in a time loop: fewer, and packed weights are read for too little.
inline constexpr std::int64_t loop_rows_of_a_thread = 16;
/// Operations of a time loop below which a second thread costs more than it brings (about 10 us of one core).
inline constexpr std::int64_t loop_work_of_a_thread = 1'000'000;
/// Rows of A that meet a panel of packed B at a time.
inline constexpr std::int64_t step_rows = 64;
/// Attention: keys of a block, vectors of queries side by side, and blocks of queries that share gathered keys.
inline constexpr std::int64_t attention_keys = 64, attention_vectors = 4, attention_blocks = 4;

/// What would be measured, from the rest of the figures. `lanes` are f32 in a vector; with `pairs` our micro-kernel multiplies two
/// pairs of bf16 in the time of one of f32.
CpuFigures estimate_costs(const DeviceFigures& figures, int lanes, bool pairs = false);

/// Times of one thread beside that of `threads` in work that caches serve.
double speedup_of(const CpuFigures& core, int threads);
/// Costs measured with core.threads, by another number.
ProductCosts with_threads(const CpuFigures& core, ProductCosts costs, int threads);

/// Fills in the costs of the row that runs and of products beside it.
void set_costs(Machine& machine, const DeviceFigures& figures, const Setting& setting);
/// One product, whose columns are filled up to half a panel of the micro-kernel, or to the tile that was asked for.
double cpu_product_us(const Machine& machine, const Product& product);
/// One that is no part of a loop, with these costs.
double cost_us(const ProductCosts& costs, double m, double n, double k);
/// To read or write bytes that all threads share, from the cache that holds them or from memory.
double cpu_stream_us(const Machine& machine, double bytes);

}  // namespace everglow::plan
