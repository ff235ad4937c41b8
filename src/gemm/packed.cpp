// Drives the micro-kernel: cache blocks, packing, and threads over a grid of parts of C. k is never split among threads.
#include "gemm/packed.hpp"

#include <everglow/error.hpp>

#include "core/parallel.hpp"
#include "core/rounding.hpp"
#include "core/text.hpp"
#include "plan/cpu.hpp"

#include <array>
#include <cstdlib>
#include <memory>

namespace everglow {
namespace {

constexpr std::int64_t block_k = 256;                 // a panel of B of this depth is 32 KiB with AVX-512: it stays in L1
constexpr std::int64_t words_k = 2 * block_k;         // likewise where A and B are words
constexpr std::int64_t block_rows = 32;               // row panels of a block of A: 448 rows, 448 KiB, in L2
constexpr std::int64_t block_n = 1024;                // 1 MiB of packed B, in L2
constexpr std::int64_t beside_n = 512;                // likewise where sums grow beside C: those of 448 rows are 896 KiB
constexpr std::int64_t kept_a = 1 << 18;              // floats of A up to which it is packed once instead of once for each block_n
constexpr std::int64_t finish_columns = 128;          // columns of C that are completed before `finish` sees them
constexpr double grain = 1 << 18;                     // multiply-adds that are worth a thread
constexpr std::int64_t stack_rows = plan::step_rows;  // rows of A that gemm_packed packs at a time
constexpr std::int64_t stack_columns = 512;           // columns of packed B that they meet while those are in L2; whole panels
constexpr std::int64_t stack_a = stack_rows * block_k;  // 64 KiB, on the stack
constexpr std::int64_t most_slack = 16;                 // of any instruction set

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
struct Scratch {
  std::unique_ptr<float, Free> memory;
  std::int64_t floats = 0;
};

/// A part of C for one thread.
struct Part {
  std::int64_t m0, m1, n0, n1;
};

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
Element element_of(DType dtype) { return static_cast<Element>(dtype); }

/// Element (row, column) of A or B where it is stored, and all behind it.
Stored a_at(const Gemm& p, std::int64_t row, std::int64_t l) {
  const std::int64_t at = p.transpose_a ? l * p.lda + row * p.step_a : row * p.lda + l * p.step_a;
  return {static_cast<const std::byte*>(p.a) + at * bytes_of(p.a_type), element_of(p.a_type), p.lda, p.step_a};
}
Stored b_at(const Gemm& p, std::int64_t l, std::int64_t column) {
  const std::int64_t at = p.transpose_b ? column * p.ldb + l * p.step_b : l * p.ldb + column * p.step_b;
  return {static_cast<const std::byte*>(p.b) + at * bytes_of(p.b_type), element_of(p.b_type), p.ldb, p.step_b};
}
StoredOut c_at(const Gemm& p, std::int64_t row, std::int64_t column) {
  return {static_cast<std::byte*>(p.c) + (row * p.ldc + column * p.step_c) * bytes_of(p.c_type), element_of(p.c_type), p.ldc,
          p.step_c};
}
Stored reading(const StoredOut& m) { return {m.data, m.element, m.stride, m.step}; }

/// Whether sums may grow in C itself; else they grow in a block of f32 beside it.
bool grows_in_c(const Gemm& p) { return p.c_type == DType::f32 && p.step_c == 1; }

/// k as packed B has it: whole words.
std::int64_t panel_depth(const GemmKernels& kernels, std::int64_t k, Element element) {
  return kernels.words() && element == Element::bf16 ? rounded_up(k, 2) : k;
}
/// Where row l and the first column of a panel of a packed matrix lie.
struct PackedPlace {
  std::int64_t k, l, column;
};
const std::byte* packed_at(const GemmKernels& kernels, const void* packed, DType dtype, const PackedPlace& at) {
  const std::int64_t depth = panel_depth(kernels, at.k, element_of(dtype));
  return static_cast<const std::byte*>(packed) + (at.column * depth + at.l * kernels.panel_columns) * bytes_of(dtype);
}

class PartProduct {
 public:
  PartProduct(const Gemm& p, const GemmKernels& kernels, const Part& part)
      : p_(p),
        kernels_(kernels),
        part_(part),
        words_(kernels.words() && p.a_type == DType::bf16 && p.b_type == DType::bf16),
        depth_(std::min(p.k, words_ ? words_k : block_k)),
        rows_(std::min(part.m1 - part.m0, block_rows * kernels.rows)),
        direct_(grows_in_c(p)) {
    const std::int64_t m = part.m1 - part.m0;
    keeps_a_ = m * p.k <= kept_a;
    // A single panel of rows reads packed B once, whatever the depth.
    if (keeps_a_ && p.packed_b && m <= kernels.rows) depth_ = p.k;
    const std::int64_t most = keeps_a_ ? finish_columns : direct_ ? block_n : beside_n;
    columns_ = std::min(most, rounded_up(part.n1 - part.n0, kernels.panel_columns));
    a_ = thread_scratch(ScratchSlot::a, (keeps_a_ ? m * floats(p.k) : rows_ * floats(depth_)) + kernels.slack);
    if (!p.packed_b) b_ = thread_scratch(ScratchSlot::b, columns_ * floats(depth_));
    if (!direct_) c_ = thread_scratch(ScratchSlot::c, rows_ * columns_);
  }

  void run() {
    if (keeps_a_)
      for (std::int64_t l = 0; l < p_.k; l += depth_)
        for (std::int64_t i = part_.m0; i < part_.m1; i += rows_) packed_a(i, l, true);
    for (std::int64_t j = part_.n0; j < part_.n1; j += columns_) {
      const std::int64_t end = std::min(j + columns_, part_.n1);
      read_bias(j, end - j);
      if (direct_)
        for (std::int64_t l = 0; l < p_.k; l += depth_) {
          packed_b(j, end, l);
          for (std::int64_t i = part_.m0; i < part_.m1; i += rows_) grow(i, j, end, l);
        }
      else
        for (std::int64_t i = part_.m0; i < part_.m1; i += rows_) beside(i, j, end);
    }
  }

 private:
  std::int64_t depth(std::int64_t l) const { return std::min(depth_, p_.k - l); }
  std::int64_t rows(std::int64_t i) const { return std::min(rows_, part_.m1 - i); }
  /// That k elements of a row take in packed A, or of a column in B packed here.
  std::int64_t floats(std::int64_t k) const { return words_ ? (k + 1) / 2 : k; }

  const float* packed_a(std::int64_t i, std::int64_t l, bool pack) {
    float* to = keeps_a_ ? a_ + floats(l) * (part_.m1 - part_.m0) + (i - part_.m0) * floats(depth(l)) : a_;
    if (pack) (words_ ? kernels_.pack_words : kernels_.pack_a)(p_.transpose_a, a_at(p_, i, l), rows(i), depth(l), to);
    return to;
  }

  void packed_b(std::int64_t j0, std::int64_t j1, std::int64_t l) {
    if (p_.packed_b) return;
    kernels_.pack_b(p_.transpose_b, b_at(p_, l, j0), depth(l), j1 - j0,
                    {.data = b_, .element = element_of_b(), .stride = panel_stride(l)});
  }

  /// The bias of a block of columns, where it is not f32 already.
  void read_bias(std::int64_t j, std::int64_t columns) {
    if (p_.bias == nullptr) return;
    const Stored from{static_cast<const std::byte*>(p_.bias) + j * p_.step_bias * bytes_of(p_.bias_type), element_of(p_.bias_type),
                      0, p_.step_bias};
    bias_ = static_cast<const float*>(from.data);
    if (from.element == Element::f32 && from.step == 1) return;
    kernels_.convert(1, columns, from, {.data = bias_block_.data()});
    bias_ = bias_block_.data();
  }

  /// Elements of a packed panel of B.
  std::int64_t panel_stride(std::int64_t l) const {
    return panel_depth(kernels_, p_.packed_b ? p_.k : depth(l), element_of_b()) * kernels_.panel_columns;
  }
  Element element_of_b() const { return p_.packed_b ? element_of(p_.b_type) : words_ ? Element::bf16 : Element::f32; }

  /// The product of rows from i, columns [j, end) and k from l, where B is packed; `values` points at the block's first element.
  void multiply(std::int64_t i, std::int64_t j, std::int64_t columns, std::int64_t l, float* values, std::int64_t stride) {
    const std::int64_t j0 = (j - part_.n0) / columns_ * columns_ + part_.n0;  // where the block of packed columns begins
    const void* b = b_ + (j - j0) * floats(depth(l));
    if (p_.packed_b) b = packed_at(kernels_, p_.b, p_.b_type, {p_.k, l, j});
    kernels_.multiply({.m = rows(i),
                       .n = columns,
                       .k = depth(l),
                       .a = packed_a(i, l, false),
                       .words = words_,
                       .b = b,
                       .b_element = element_of_b(),
                       .panel_stride = panel_stride(l),
                       .c = values,
                       .ldc = stride,
                       .bias = l == 0 && bias_ != nullptr ? bias_ + (j - j0) : nullptr,
                       .load_c = l > 0 || p_.accumulate});
  }

  /// Columns [j0, j1) of C plus the products of k from l on; finishes them where those are the last.
  void grow(std::int64_t i, std::int64_t j0, std::int64_t j1, std::int64_t l) {
    const bool last = l + depth_ >= p_.k;
    packed_a(i, l, !keeps_a_);
    const std::int64_t step = last && p_.finish.run != nullptr ? finish_columns : j1 - j0;
    for (std::int64_t j = j0; j < j1; j += step) {
      const std::int64_t n = std::min(step, j1 - j);
      float* c = static_cast<float*>(p_.c) + i * p_.ldc + j;
      multiply(i, j, n, l, c, p_.ldc);
      if (last) finish(i, j, n, c, p_.ldc);
    }
  }

  /// A block of C whose sums grow beside it, and are rounded into it or finished when they are complete.
  void beside(std::int64_t i, std::int64_t j0, std::int64_t j1) {
    const std::int64_t columns = j1 - j0;
    const StoredOut block{.data = c_, .stride = columns_};
    if (p_.accumulate) kernels_.convert(rows(i), columns, reading(c_at(p_, i, j0)), block);
    for (std::int64_t l = 0; l < p_.k; l += depth_) {
      packed_b(j0, j1, l);
      packed_a(i, l, !keeps_a_);
      multiply(i, j0, columns, l, c_, columns_);
    }
    if (p_.finish.run == nullptr || !p_.finish.replaces) kernels_.convert(rows(i), columns, reading(block), c_at(p_, i, j0));
    finish(i, j0, columns, c_, columns_);
  }

  void finish(std::int64_t i, std::int64_t j, std::int64_t columns, const float* values, std::int64_t stride) const {
    if (p_.finish.run == nullptr) return;
    p_.finish.run(
        p_.finish.context,
        {.row = i, .column = j, .rows = rows(i), .columns = columns, .values = values, .dtype = DType::f32, .stride = stride});
  }

  const Gemm& p_;
  const GemmKernels& kernels_;
  Part part_;
  bool words_;
  std::int64_t depth_, rows_, columns_ = 0;
  bool direct_, keeps_a_ = false;
  float* a_ = nullptr;
  float* b_ = nullptr;
  float* c_ = nullptr;
  const float* bias_ = nullptr;  // of the columns of the block
  std::array<float, block_n> bias_block_;
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
    const auto n = static_cast<double>(rounded_up((p.n + columns - 1) / columns, kernels.panel_columns));
    const double work = m * n + packing * (m + n);
    if (least >= 0 && work >= least) continue;
    least = work;
    best = {rows, columns};
  }
  return best;
}

/// A product over no k: bias or zeros, or C as it is.
void without_products(const Gemm& p, const GemmKernels& kernels) {
  std::array<float, 256> row;
  const auto width = static_cast<std::int64_t>(row.size());
  const bool stores = p.finish.run == nullptr || !p.finish.replaces;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; j += width) {
      const std::int64_t columns = std::min(width, p.n - j);
      std::array<float, 256> bias{};
      if (p.bias != nullptr)
        kernels.convert(1, columns,
                        {static_cast<const std::byte*>(p.bias) + j * p.step_bias * bytes_of(p.bias_type), element_of(p.bias_type),
                         0, p.step_bias},
                        {.data = bias.data()});
      row.fill(0);
      if (p.accumulate) kernels.convert(1, columns, reading(c_at(p, i, j)), {.data = row.data()});
      for (std::size_t l = 0; l < row.size(); ++l) row[l] += bias[l];
      if (stores) kernels.convert(1, columns, {.data = row.data()}, c_at(p, i, j));
      if (p.finish.run != nullptr)
        p.finish.run(p.finish.context,
                     {.row = i, .column = j, .rows = 1, .columns = columns, .values = row.data(), .stride = width});
    }
}

}  // namespace

float* thread_scratch(ScratchSlot slot, std::int64_t floats) {
  static thread_local std::array<Scratch, 4> scratch;
  Scratch& mine = scratch[static_cast<std::size_t>(slot)];
  if (mine.floats >= floats) return mine.memory.get();
  const std::int64_t rounded = rounded_up(floats, 1024);
  mine.memory.reset();
  mine.floats = 0;
  mine.memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(rounded) * sizeof(float))));
  if (mine.memory == nullptr)
    throw Error(ErrorCode::out_of_memory, "gemm", text("expected ", rounded * std::int64_t{sizeof(float)}, " bytes to pack into"));
  mine.floats = rounded;
  return mine.memory.get();
}

const GemmKernels& gemm_kernels(Isa isa) {
  return select(isa, portable::gemm_kernels, avx2::gemm_kernels, avx512::gemm_kernels, avx512_bf16::gemm_kernels);
}

bool multiplies_bf16(Isa isa) { return gemm_kernels(isa).words(); }

std::string_view how_multiplied(Isa isa, DType dtype) {
  if (dtype == DType::bf16) return multiplies_bf16(isa) ? "bf16 multiplied as it is, in pairs" : "bf16 widened to f32";
  return dtype == DType::f16 ? "f16 converted to f32" : "";
}

void gemm_own(const Gemm& p, int threads, Isa isa) {
  if (p.m <= 0 || p.n <= 0) return;
  const GemmKernels& kernels = gemm_kernels(isa);
  if (p.k <= 0) {
    without_products(p, kernels);
    return;
  }
  const Grid grid = grid_of(p, threads, kernels);
  const std::int64_t panels = (p.n + kernels.panel_columns - 1) / kernels.panel_columns;
  parallel_tasks(grid.rows * grid.columns, std::int64_t{grid.rows} * grid.columns, [&](std::int64_t task) {
    const std::int64_t row = task / grid.columns, column = task % grid.columns;
    const Part part{p.m * row / grid.rows, p.m * (row + 1) / grid.rows, panels * column / grid.columns * kernels.panel_columns,
                    std::min(p.n, panels * (column + 1) / grid.columns * kernels.panel_columns)};
    if (part.m0 < part.m1 && part.n0 < part.n1) PartProduct(p, kernels, part).run();
  });
}

std::size_t packed_matrix_bytes(Isa isa, std::int64_t k, std::int64_t n, DType dtype) {
  const GemmKernels& kernels = gemm_kernels(isa);
  return static_cast<std::size_t>(panel_depth(kernels, k, element_of(dtype)) * rounded_up(n, kernels.panel_columns)) *
         size_of(dtype);
}

std::int64_t packed_panel_columns(Isa isa) { return gemm_kernels(isa).panel_columns; }

void pack_matrix(Isa isa, const MatrixToPack& b, void* packed) {
  const GemmKernels& kernels = gemm_kernels(isa);
  kernels.pack_b(b.transpose, {b.data, element_of(b.dtype), b.stride, b.step}, b.k, b.n,
                 {.data = packed,
                  .element = element_of(b.dtype),
                  .stride = panel_depth(kernels, b.k, element_of(b.dtype)) * kernels.panel_columns});
}

void gemm_packed(Isa isa, const PackedGemm& p) noexcept {
  const GemmKernels& kernels = gemm_kernels(isa);
  const std::int64_t end = std::min(p.column_end, p.n), columns = end - p.column_begin;
  if (p.m <= 0 || columns <= 0) return;
  if (p.k <= 0) {
    without_products({.m = p.m, .n = columns, .c = p.c + p.column_begin, .ldc = p.ldc, .accumulate = p.accumulate}, kernels);
    return;
  }
  alignas(64) float packed_a[stack_a + most_slack];
  const bool words = kernels.words() && p.packed_type == DType::bf16 && (p.a_type == DType::bf16 || p.a_is_bf16);
  const std::int64_t blocks = (p.m + stack_rows - 1) / stack_rows, most_rows = (p.m + blocks - 1) / blocks;
  // One row panel reads B once whatever the depth; with more, a panel of B stays near for all of them, and with several blocks of
  // rows a group of panels stays in L2.
  const std::int64_t most_deep = (words ? 2 : 1) * (stack_a / most_rows);
  const std::int64_t deep = (most_rows <= kernels.rows ? most_deep : std::min(2 * block_k, most_deep)) / 2 * 2;
  const std::int64_t step = most_rows <= kernels.rows ? columns : kernels.panel_columns;
  const std::int64_t group = blocks == 1 ? columns : stack_columns;
  for (std::int64_t g = 0; g < columns; g += group)
    for (std::int64_t l = 0; l < p.k; l += deep)
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t i0 = p.m * block / blocks, rows = p.m * (block + 1) / blocks - i0;
        const std::int64_t depth = std::min(deep, p.k - l), last = std::min(g + group, columns);
        const auto pack = words ? kernels.pack_words : kernels.pack_a;
        pack(false, {static_cast<const std::byte*>(p.a) + (i0 * p.lda + l) * bytes_of(p.a_type), element_of(p.a_type), p.lda}, rows,
             depth, packed_a);
        for (std::int64_t j = g; j < last; j += step)
          kernels.multiply({.m = rows,
                            .n = std::min(step, last - j),
                            .k = depth,
                            .a = packed_a,
                            .words = words,
                            .b = packed_at(kernels, p.packed, p.packed_type, {p.k, l, p.column_begin + j}),
                            .b_element = element_of(p.packed_type),
                            .panel_stride = panel_depth(kernels, p.k, element_of(p.packed_type)) * kernels.panel_columns,
                            .c = p.c + i0 * p.ldc + p.column_begin + j,
                            .ldc = p.ldc,
                            .load_c = l > 0 || p.accumulate});
      }
}

}  // namespace everglow
