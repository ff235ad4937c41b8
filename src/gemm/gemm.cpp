// Chooses who multiplies: oneDNN for products that are worth its call, else our micro-kernel.
#include "gemm/gemm.hpp"

#include "core/parallel.hpp"
#include "gemm/onednn.hpp"
#include "gemm/packed.hpp"

namespace everglow {
namespace {

/// Below this many multiply-adds a primitive's look-up and call cost as much as the product.
constexpr double library_pays = 1 << 18;

/// An instruction set that was lowered by the user holds for all arithmetic, so it keeps oneDNN, which picks its own, away. Inside
/// a parallel region oneDNN would run on one thread with work cut for many.
bool library_serves(const Gemm& p, const GemmContext& context) {
  if (!context.library || !has_onednn() || context.isa != best_isa() || omp_in_parallel() != 0) return false;
  return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) >= library_pays && onednn_accepts(p);
}

}  // namespace

void gemm(const Gemm& p, const GemmContext& context) {
  if (context.prepares) {
    if (library_serves(p, context)) onednn_prepare(p, context.threads);
    return;
  }
  if (!library_serves(p, context) || !onednn_gemm(p, context.threads)) {
    gemm_own(p, context.threads, context.isa);
    return;
  }
  if (p.finish.run == nullptr || onednn_activates(p)) return;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / p.n);
  const auto bytes = static_cast<std::int64_t>(size_of(p.c_type));
  parallel_ranges(context.threads, p.m, grain, [&](std::int64_t begin, std::int64_t end) {
    p.finish.run(p.finish.context, {.row = begin,
                                    .column = 0,
                                    .rows = end - begin,
                                    .columns = p.n,
                                    .values = static_cast<const std::byte*>(p.c) + begin * p.ldc * bytes,
                                    .dtype = p.c_type,
                                    .stride = p.ldc});
  });
}

}  // namespace everglow
