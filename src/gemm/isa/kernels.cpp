// The micro-kernel: a tile of C in registers, one multiply-add chain an element, fed from packed panels of A and B; and the
// packing.
#include "gemm/kernels.hpp"

#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

// 14 x 2 accumulators of 32 registers leave two for B and one for A; 6 x 2 of 16 likewise.
constexpr int max_rows = lanes == 16 ? 14 : 6;
constexpr int panel_columns = 2 * lanes;

std::int64_t row_panels(std::int64_t m) { return (m + max_rows - 1) / max_rows; }

/// `rows` x (`vectors` · lanes) elements of C. More than two vectors reach into the next panels of B.
template <int rows, int vectors>
void tile(const PackedProduct& t, const float* a, float* c, std::int64_t column, int columns) {
  const float* b = t.b + column / panel_columns * t.panel_stride;
  vfloat sum[rows][vectors];
  const bool whole = columns == vectors * lanes;
  const auto read = [whole, columns](const float* p, int v) {
    const int left = columns - v * lanes;
    return whole || left >= lanes ? load(p + v * lanes) : load_part(p + v * lanes, left > 0 ? left : 0);
  };
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    const vfloat first = t.bias != nullptr ? read(t.bias + column, v) : splat(0.0F);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      sum[r][v] = t.load_c ? read(c + r * t.ldc, v) + first : first;
      if (!t.load_c) __builtin_prefetch(c + r * t.ldc + v * lanes, 1);
    }
  }
  for (std::int64_t l = 0; l < t.k; ++l) {
    vfloat row[vectors];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) row[v] = load(b + v / 2 * t.panel_stride + v % 2 * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const vfloat element = splat(a[r]);
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) sum[r][v] += element * row[v];
    }
    a += rows;
    b += panel_columns;
  }
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    const int left = columns - v * lanes;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      float* p = c + r * t.ldc + v * lanes;
      if (whole || left >= lanes)
        store(p, sum[r][v]);
      else if (left > 0)
        store_part(p, sum[r][v], left);
    }
  }
}

/// Turns the row count of a panel into a constant. Few rows take more columns at once, so that enough chains are in flight.
template <int rows, int vectors>
void tile_of(int count, const PackedProduct& t, const float* a, float* c, std::int64_t column, int columns) {
  if (count == rows)
    tile<rows, vectors>(t, a, c, column, columns);
  else if constexpr (rows > 1)
    tile_of<rows - 1, vectors>(count, t, a, c, column, columns);
}

template <int rows, int vectors>
void columns_of(const PackedProduct& t, std::int64_t column, int columns) {
  const std::int64_t panels = row_panels(t.m);
  for (std::int64_t i = 0; i < panels; ++i) {
    const std::int64_t begin = t.m * i / panels, end = t.m * (i + 1) / panels;
    tile_of<rows, vectors>(static_cast<int>(end - begin), t, t.a + begin * t.k, t.c + begin * t.ldc + column, column, columns);
  }
}

void multiply(const PackedProduct& t) {
  for (std::int64_t column = 0; column < t.n;) {
    const std::int64_t left = t.n - column;
    if (t.m == 1 && left >= 8 * lanes) {
      columns_of<1, 8>(t, column, 8 * lanes);
      column += 8 * lanes;
    } else if (t.m <= 3 && left >= 4 * lanes) {
      columns_of<3, 4>(t, column, 4 * lanes);
      column += 4 * lanes;
    } else if (left > lanes) {
      columns_of<max_rows, 2>(t, column, static_cast<int>(left < panel_columns ? left : panel_columns));
      column += panel_columns;
    } else {
      columns_of<max_rows, 1>(t, column, static_cast<int>(left));
      column += panel_columns;
    }
  }
}

/// Reads `rows` rows of `count` elements each (the rest counts as zero) and turns them: vector l holds element l of every row.
inline void load_turned(const float* from, std::int64_t stride, int rows, int count, vfloat (&out)[lanes]) {
  for (int r = 0; r < lanes; ++r) {
    if (r >= rows)
      out[r] = splat(0.0F);
    else
      out[r] = count == lanes ? load(from + r * stride) : load_part(from + r * stride, count);
  }
  transpose(out);
}

int smaller(std::int64_t a, int b) { return a < b ? static_cast<int>(a) : b; }

void pack_panel_rows(const float* a, std::int64_t lda, int rows, std::int64_t k, float* packed) {
  if (rows < 4 || rows > lanes) {
    for (std::int64_t l = 0; l < k; ++l)
      for (int r = 0; r < rows; ++r) *packed++ = a[r * lda + l];
    return;
  }
  for (std::int64_t l = 0; l < k; l += lanes) {
    const int count = smaller(k - l, lanes);
    vfloat turned[lanes];
    load_turned(a + l, lda, rows, count, turned);
    // Whole vectors are stored: what is too much is overwritten by the next store, or lies in the slack.
    for (int i = 0; i < count; ++i) store(packed + (l + i) * rows, turned[i]);
  }
}

/// Rows [begin, end) of stored Aᵀ: `rows` elements of each go to their panel. Whole vectors are stored where they may be read; only
/// the last row of a panel is stored exactly, because the next panel may stand behind it already.
void pack_panel_columns(const float* a, std::int64_t lda, int rows, bool readable, std::int64_t begin, std::int64_t end, bool last,
                        float* packed) {
  std::int64_t l = begin;
  if (readable)
    for (; l < end - (last ? 1 : 0); ++l) store(packed + l * rows, load(a + l * lda));
  for (; l < end; ++l)
    for (int r = 0; r < rows; ++r) packed[l * rows + r] = a[l * lda + r];
}

void pack_a(bool transpose, const float* a, std::int64_t lda, std::int64_t m, std::int64_t k, float* packed) {
  constexpr std::int64_t few = 16;  // stored rows of Aᵀ that all panels read before the next: as many pages at a time
  const std::int64_t panels = row_panels(m);
  for (std::int64_t l = 0; l < k; l += transpose ? few : k)
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t begin = m * i / panels;
      const auto rows = static_cast<int>(m * (i + 1) / panels - begin);
      float* panel = packed + begin * k;
      if (!transpose)
        pack_panel_rows(a + begin * lda, lda, rows, k, panel);
      else
        pack_panel_columns(a + begin, lda, rows, rows <= lanes && m - begin >= lanes, l, l + few < k ? l + few : k, l + few >= k,
                           panel);
    }
}

void pack_turned(const float* b, std::int64_t ldb, std::int64_t k, int columns, float* packed) {
  for (std::int64_t l = 0; l < k; l += lanes) {
    const int count = smaller(k - l, lanes);
    vfloat turned[lanes];
    load_turned(b + l, ldb, columns, count, turned);
    for (int i = 0; i < count; ++i) store(packed + (l + i) * panel_columns, turned[i]);
  }
}

void pack_b(bool transpose, const float* b, std::int64_t ldb, std::int64_t k, std::int64_t n, float* packed,
            std::int64_t panel_stride) {
  const auto place = [packed, panel_stride](std::int64_t column) {
    return packed + column / panel_columns * panel_stride + column % panel_columns;
  };
  if (transpose) {
    for (std::int64_t column = 0; column < n; column += lanes)
      pack_turned(b + column * ldb, ldb, k, smaller(n - column, lanes), place(column));
    return;
  }
  for (std::int64_t l = 0; l < k; ++l) {  // a row of B lies in one page, a column of it in k
    std::int64_t column = 0;
    for (; column + lanes <= n; column += lanes) store(place(column) + l * panel_columns, load(b + l * ldb + column));
    if (column < n) store(place(column) + l * panel_columns, load_part(b + l * ldb + column, static_cast<int>(n - column)));
  }
}

}  // namespace

const GemmKernels gemm_kernels{
    .rows = max_rows, .panel_columns = panel_columns, .slack = lanes, .pack_a = pack_a, .pack_b = pack_b, .multiply = multiply};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
