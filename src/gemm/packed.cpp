// Drives the micro-kernel: cache blocks, packing, and threads over a grid of parts of C. k is never split among threads.
#include "gemm/packed.hpp"

#include <everglow/error.hpp>

#include "core/parallel.hpp"
#include "core/text.hpp"

#include <array>
#include <cstdlib>
#include <memory>

namespace everglow {
namespace {

constexpr std::int64_t block_k = 256;         // a panel of B of this depth is 32 KiB with AVX-512: it stays in L1
constexpr std::int64_t block_rows = 32;       // row panels of a block of A: 448 rows, 448 KiB, in L2
constexpr std::int64_t block_n = 1024;        // 1 MiB of packed B, in L2
constexpr std::int64_t kept_a = 1 << 18;      // floats of A up to which it is packed once instead of once for each block_n
constexpr std::int64_t finish_columns = 128;  // columns of C that are completed before `finish` sees them
constexpr double grain = 1 << 18;             // multiply-adds that are worth a thread
constexpr std::int64_t stack_rows = 64;       // rows of A that gemm_packed packs at a time
constexpr std::int64_t stack_columns = 512;   // columns of packed B that they meet while those are in L2; whole panels
constexpr std::int64_t stack_a = stack_rows * block_k;  // 64 KiB, on the stack
constexpr std::int64_t most_slack = 16;                 // of any instruction set

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
struct Scratch {
  std::unique_ptr<float, Free> memory;
  std::int64_t floats = 0;
};

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// A part of C for one thread.
struct Part {
  std::int64_t m0, m1, n0, n1;
};

const float* a_at(const Gemm& p, std::int64_t row, std::int64_t l) {
  return p.transpose_a ? p.a + l * p.lda + row : p.a + row * p.lda + l;
}
const float* b_at(const Gemm& p, std::int64_t l, std::int64_t column) {
  return p.transpose_b ? p.b + column * p.ldb + l : p.b + l * p.ldb + column;
}

class PartProduct {
 public:
  PartProduct(const Gemm& p, const GemmKernels& kernels, const Part& part)
      : p_(p),
        kernels_(kernels),
        part_(part),
        depth_(std::min(p.k, block_k)),
        rows_(std::min(part.m1 - part.m0, block_rows * kernels.rows)) {
    const std::int64_t m = part.m1 - part.m0;
    keeps_a_ = m * p.k <= kept_a;
    columns_ = std::min(keeps_a_ ? finish_columns : block_n, round_up(part.n1 - part.n0, kernels.panel_columns));
    a_ = thread_scratch(ScratchSlot::a, (keeps_a_ ? m * p.k : rows_ * depth_) + kernels.slack);
    b_ = thread_scratch(ScratchSlot::b, columns_ * depth_);
  }

  void run() {
    if (keeps_a_)
      for (std::int64_t l = 0; l < p_.k; l += block_k)
        for (std::int64_t i = part_.m0; i < part_.m1; i += rows_) packed_a(i, l, true);
    for (std::int64_t j = part_.n0; j < part_.n1; j += columns_)
      for (std::int64_t l = 0; l < p_.k; l += block_k) block(j, std::min(j + columns_, part_.n1), l);
  }

 private:
  std::int64_t depth(std::int64_t l) const { return std::min(block_k, p_.k - l); }

  const float* packed_a(std::int64_t i, std::int64_t l, bool pack) {
    const std::int64_t m = std::min(rows_, part_.m1 - i);
    float* to = keeps_a_ ? a_ + l * (part_.m1 - part_.m0) + (i - part_.m0) * depth(l) : a_;
    if (pack) kernels_.pack_a(p_.transpose_a, a_at(p_, i, l), p_.lda, m, depth(l), to);
    return to;
  }

  /// Columns [j0, j1) of C plus the products of k block l.
  void block(std::int64_t j0, std::int64_t j1, std::int64_t l) {
    const bool last = l + block_k >= p_.k;
    const std::int64_t panel_stride = depth(l) * kernels_.panel_columns;
    kernels_.pack_b(p_.transpose_b, b_at(p_, l, j0), p_.ldb, depth(l), j1 - j0, b_, panel_stride);
    for (std::int64_t i = part_.m0; i < part_.m1; i += rows_) {
      const std::int64_t m = std::min(rows_, part_.m1 - i);
      const float* a = packed_a(i, l, !keeps_a_);
      const std::int64_t step = last && p_.finish.run != nullptr ? finish_columns : j1 - j0;
      for (std::int64_t j = j0; j < j1; j += step) {
        const std::int64_t n = std::min(step, j1 - j);
        kernels_.multiply({.m = m,
                           .n = n,
                           .k = depth(l),
                           .a = a,
                           .b = b_ + (j - j0) * depth(l),
                           .panel_stride = panel_stride,
                           .c = p_.c + i * p_.ldc + j,
                           .ldc = p_.ldc,
                           .bias = l == 0 && p_.bias != nullptr ? p_.bias + j : nullptr,
                           .load_c = l > 0 || p_.accumulate});
        if (last && p_.finish.run != nullptr) p_.finish.run(p_.finish.context, i, i + m, j, j + n);
      }
    }
  }

  const Gemm& p_;
  const GemmKernels& kernels_;
  Part part_;
  std::int64_t depth_, rows_, columns_ = 0;
  bool keeps_a_ = false;
  float* a_ = nullptr;
  float* b_ = nullptr;
};

struct Grid {
  int rows = 1, columns = 1;
};

/// The grid of at most `threads` parts with the least work for the busiest thread: multiply-adds, and packing, which costs about as
/// much as 8 columns of products for an element of A or 8 rows for one of B.
Grid grid_of(const Gemm& p, int threads, const GemmKernels& kernels) {
  constexpr double packing = 8;
  const double worth = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) / grain;
  const auto useful = static_cast<int>(std::clamp(worth, 1.0, static_cast<double>(threads)));
  Grid best;
  double least = -1;
  for (int rows = 1; rows <= useful; ++rows) {
    const int columns = useful / rows;
    const auto m = static_cast<double>((p.m + rows - 1) / rows);
    const auto n = static_cast<double>(round_up((p.n + columns - 1) / columns, kernels.panel_columns));
    const double work = m * n + packing * (m + n);
    if (least >= 0 && work >= least) continue;
    least = work;
    best = {rows, columns};
  }
  return best;
}

void without_products(const Gemm& p) {
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float& c = p.c[i * p.ldc + j];
      c = (p.accumulate ? c : 0.0F) + (p.bias != nullptr ? p.bias[j] : 0.0F);
    }
  if (p.finish.run != nullptr) p.finish.run(p.finish.context, 0, p.m, 0, p.n);
}

}  // namespace

float* thread_scratch(ScratchSlot slot, std::int64_t floats) {
  static thread_local std::array<Scratch, 3> scratch;
  Scratch& mine = scratch[static_cast<std::size_t>(slot)];
  if (mine.floats >= floats) return mine.memory.get();
  const std::int64_t rounded = round_up(floats, 1024);
  mine.memory.reset();
  mine.floats = 0;
  mine.memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(rounded) * sizeof(float))));
  if (mine.memory == nullptr)
    throw Error(ErrorCode::out_of_memory, "gemm", text("expected ", rounded * std::int64_t{sizeof(float)}, " bytes to pack into"));
  mine.floats = rounded;
  return mine.memory.get();
}

const GemmKernels& gemm_kernels(Isa isa) { return select(isa, portable::gemm_kernels, avx2::gemm_kernels, avx512::gemm_kernels); }

void gemm_own(const Gemm& p, int threads, Isa isa) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.k <= 0) {
    without_products(p);
    return;
  }
  const GemmKernels& kernels = gemm_kernels(isa);
  const Grid grid = grid_of(p, threads, kernels);
  const std::int64_t panels = (p.n + kernels.panel_columns - 1) / kernels.panel_columns;
  parallel_tasks(grid.rows * grid.columns, std::int64_t{grid.rows} * grid.columns, [&](std::int64_t task) {
    const std::int64_t row = task / grid.columns, column = task % grid.columns;
    const Part part{p.m * row / grid.rows, p.m * (row + 1) / grid.rows, panels * column / grid.columns * kernels.panel_columns,
                    std::min(p.n, panels * (column + 1) / grid.columns * kernels.panel_columns)};
    if (part.m0 < part.m1 && part.n0 < part.n1) PartProduct(p, kernels, part).run();
  });
}

std::size_t packed_matrix_bytes(Isa isa, std::int64_t k, std::int64_t n) {
  return static_cast<std::size_t>(k * round_up(n, gemm_kernels(isa).panel_columns)) * sizeof(float);
}

std::int64_t packed_panel_columns(Isa isa) { return gemm_kernels(isa).panel_columns; }

void pack_matrix(Isa isa, bool transpose_b, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, void* packed) {
  const GemmKernels& kernels = gemm_kernels(isa);
  kernels.pack_b(transpose_b, b, ldb, k, n, static_cast<float*>(packed), k * kernels.panel_columns);
}

void gemm_packed(Isa isa, std::int64_t m, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda, const void* packed,
                 std::int64_t column_begin, std::int64_t column_end, float* c, std::int64_t ldc, bool accumulate) noexcept {
  const GemmKernels& kernels = gemm_kernels(isa);
  const std::int64_t end = std::min(column_end, n), columns = end - column_begin;
  if (m <= 0 || columns <= 0) return;
  if (k <= 0) {
    without_products({.m = m, .n = columns, .c = c + column_begin, .ldc = ldc, .accumulate = accumulate});
    return;
  }
  alignas(64) float packed_a[stack_a + most_slack];
  const auto* b = static_cast<const float*>(packed) + column_begin * k;
  const std::int64_t blocks = (m + stack_rows - 1) / stack_rows, most_rows = (m + blocks - 1) / blocks;
  // One row panel reads B once whatever the depth; with more, a panel of B stays near for all of them, and with several blocks of
  // rows a group of panels stays in L2.
  const std::int64_t deep = most_rows <= kernels.rows ? stack_a / most_rows : std::min(2 * block_k, stack_a / most_rows);
  const std::int64_t step = most_rows <= kernels.rows ? columns : kernels.panel_columns;
  const std::int64_t group = blocks == 1 ? columns : stack_columns;
  for (std::int64_t g = 0; g < columns; g += group)
    for (std::int64_t l = 0; l < k; l += deep)
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t i0 = m * block / blocks, rows = m * (block + 1) / blocks - i0;
        const std::int64_t depth = std::min(deep, k - l), last = std::min(g + group, columns);
        kernels.pack_a(false, a + i0 * lda + l, lda, rows, depth, packed_a);
        for (std::int64_t j = g; j < last; j += step)
          kernels.multiply({.m = rows,
                            .n = std::min(step, last - j),
                            .k = depth,
                            .a = packed_a,
                            .b = b + j * k + l * kernels.panel_columns,
                            .panel_stride = k * kernels.panel_columns,
                            .c = c + i0 * ldc + column_begin + j,
                            .ldc = ldc,
                            .load_c = l > 0 || accumulate});
      }
}

}  // namespace everglow
