// The micro-kernel: a tile of C in registers, one multiply-add chain an element, fed from packed panels of A and B; and the
// packing, which widens what is stored in 16 bits, or makes words of pairs of bf16.
#include "gemm/kernels.hpp"
#include "gemm/isa/words.hpp"

#include "core/stored_simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

// 14 x 2 accumulators of 32 registers leave two for B and one for A; 6 x 2 of 16 likewise.
constexpr int max_rows = lanes == 16 ? 14 : 6;
constexpr int panel_columns = 2 * lanes;

std::int64_t row_panels(std::int64_t m) { return (m + max_rows - 1) / max_rows; }

/// Adds the products of a column of packed A and a row of B.
template <int rows, int vectors>
inline void add_row(const float* a, const vfloat (&row)[vectors], vfloat (&sum)[rows][vectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    const vfloat element = splat(a[r]);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v] += element * row[v];
  }
}

/// B of elements of T, a row a step, times f32 A.
template <class T>
struct Rows {
  using Unit = T;
  static constexpr int depth = 1;                           // of a unit
  static std::int64_t floats(std::int64_t k) { return k; }  // of packed A for each row

  template <int rows, int vectors>
  static void add_products(const PackedProduct& t, const float* a, const T* b, vfloat (&sum)[rows][vectors]) {
    for (std::int64_t l = 0; l < t.k; ++l, a += rows, b += panel_columns) {
      vfloat row[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) row[v] = load(b + v / 2 * t.panel_stride + v % 2 * lanes);
      add_row(a, row, sum);
    }
  }
};

#if defined(__AVX512BF16__)
template <int vectors>
inline void load_row(const PackedProduct& t, const std::uint32_t* b, vuint (&row)[vectors]) {
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) row[v] = load_words(b + v / 2 * (t.panel_stride / 2) + v % 2 * lanes);
}

/// B of words, a row of them a step, times words of A.
struct Words {
  using Unit = std::uint32_t;
  static constexpr int depth = 2;
  static std::int64_t floats(std::int64_t k) { return words_of(k); }

  template <int rows, int vectors>
  static void add_products(const PackedProduct& t, const float* packed, const Unit* b, vfloat (&sum)[rows][vectors]) {
    const auto* a = reinterpret_cast<const Word*>(packed);
    for (std::int64_t l = 0; l < words_of(t.k); ++l, a += rows, b += panel_columns) {
      vuint row[vectors];
      load_row(t, b, row);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const vuint pair = splat_bits(a[r]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) sum[r][v] = dot_words(sum[r][v], pair, row[v]);
      }
    }
  }
};

/// B of words, times f32 A: the bits of Rows.
struct WidenedWords {
  using Unit = std::uint32_t;
  static constexpr int depth = 2;
  static std::int64_t floats(std::int64_t k) { return k; }

  template <int rows, int vectors>
  static void add_products(const PackedProduct& t, const float* a, const Unit* b, vfloat (&sum)[rows][vectors]) {
    for (std::int64_t l = 0; l < t.k; l += 2, a += 2 * rows, b += panel_columns) {
      vuint words[vectors];
      load_row(t, b, words);
      vfloat row[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) row[v] = first_of_words(words[v]);
      add_row(a, row, sum);
      if (l + 1 == t.k) break;  // an odd k: there is no more of A
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) row[v] = second_of_words(words[v]);
      add_row(a + rows, row, sum);
    }
  }
};
#endif

/// `rows` x (`vectors` · lanes) elements of C. More than two vectors reach into the next panels of B.
template <class B, int rows, int vectors>
void tile(const PackedProduct& t, const float* a, float* c, std::int64_t column, int columns) {
  using Unit = typename B::Unit;
  const Unit* b = static_cast<const Unit*>(t.b) + column / panel_columns * (t.panel_stride / B::depth);
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
  B::template add_products<rows, vectors>(t, a, b, sum);
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
template <class B, int rows, int vectors>
void tile_of(int count, const PackedProduct& t, const float* a, float* c, std::int64_t column, int columns) {
  if (count == rows)
    tile<B, rows, vectors>(t, a, c, column, columns);
  else if constexpr (rows > 1)
    tile_of<B, rows - 1, vectors>(count, t, a, c, column, columns);
}

template <class B, int rows, int vectors>
void columns_of(const PackedProduct& t, std::int64_t column, int columns) {
  const std::int64_t panels = row_panels(t.m);
  for (std::int64_t i = 0; i < panels; ++i) {
    const std::int64_t begin = t.m * i / panels, end = t.m * (i + 1) / panels;
    tile_of<B, rows, vectors>(static_cast<int>(end - begin), t, t.a + begin * B::floats(t.k), t.c + begin * t.ldc + column, column,
                              columns);
  }
}

template <class B>
void multiply_by(const PackedProduct& t) {
  for (std::int64_t column = 0; column < t.n;) {
    const std::int64_t left = t.n - column;
    if (t.m == 1 && left >= 8 * lanes) {
      columns_of<B, 1, 8>(t, column, 8 * lanes);
      column += 8 * lanes;
    } else if (t.m <= 3 && left >= 4 * lanes) {
      columns_of<B, 3, 4>(t, column, 4 * lanes);
      column += 4 * lanes;
    } else if (left > lanes) {
      columns_of<B, max_rows, 2>(t, column, static_cast<int>(left < panel_columns ? left : panel_columns));
      column += panel_columns;
    } else {
      columns_of<B, max_rows, 1>(t, column, static_cast<int>(left));
      column += panel_columns;
    }
  }
}

void multiply(const PackedProduct& t) {
  if (t.b_element == Element::f32)
    multiply_by<Rows<float>>(t);
  else if (t.b_element == Element::f16)
    multiply_by<Rows<Half>>(t);
#if defined(__AVX512BF16__)
  else if (t.words)
    multiply_by<Words>(t);
  else
    multiply_by<WidenedWords>(t);
#else
  else
    multiply_by<Rows<BFloat16>>(t);
#endif
}

/// Reads `rows` rows of `count` elements each (the rest counts as zero) and turns them: vector l holds element l of every row.
template <class Source>
inline void load_turned(const Source& from, std::int64_t row, std::int64_t column, int rows, int count, vfloat (&out)[lanes]) {
  for (int r = 0; r < lanes; ++r) out[r] = r < rows ? from.read(row + r, column, count) : splat(0.0F);
  transpose(out);
}

template <class Source>
void pack_panel_rows(const Source& a, std::int64_t row, int rows, std::int64_t k, float* packed) {
  for (std::int64_t l = 0; l < k; l += lanes) {
    const int count = vector_part(k, l);
    if (rows == 1) {
      write_elements(packed + l, 1, a.read(row, l, count), count);
    } else if (rows < 4 || rows > lanes) {
      for (int r = 0; r < rows; ++r) write_elements(packed + l * rows + r, rows, a.read(row + r, l, count), count);
    } else {
      vfloat turned[lanes];
      load_turned(a, row, l, rows, count, turned);
      // Whole vectors are stored: what is too much is overwritten by the next store, or lies in the slack.
      for (int i = 0; i < count; ++i) store(packed + (l + i) * rows, turned[i]);
    }
  }
}

/// Rows [begin, end) of stored Aᵀ: `rows` elements of each go to their panel. Whole vectors are stored where they may be read; only
/// the last row of a panel is stored exactly, because the next panel may stand behind it already.
template <class Source>
void pack_panel_columns(const Source& a, std::int64_t column, int rows, bool readable, std::int64_t begin, std::int64_t end,
                        bool last, float* packed) {
  std::int64_t l = begin;
  if (readable)
    for (; l < end - (last ? 1 : 0); ++l) store(packed + l * rows, a.read(l, column, lanes));
  for (; l < end; ++l)
    for (int r = 0; r < rows; r += lanes) {
      const int count = vector_part(rows, r);
      write_elements(packed + l * rows + r, 1, a.read(l, column + r, count), count);
    }
}

template <class Source>
void pack_a_of(bool transpose, const Source& a, std::int64_t m, std::int64_t k, float* packed) {
  constexpr std::int64_t few = 16;  // stored rows of Aᵀ that all panels read before the next: as many pages at a time
  const std::int64_t panels = row_panels(m);
  for (std::int64_t l = 0; l < k; l += transpose ? few : k)
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t begin = m * i / panels;
      const auto rows = static_cast<int>(m * (i + 1) / panels - begin);
      float* panel = packed + begin * k;
      if (!transpose)
        pack_panel_rows(a, begin, rows, k, panel);
      else
        pack_panel_columns(a, begin, rows, a.step == 1 && rows <= lanes && m - begin >= lanes, l, l + few < k ? l + few : k,
                           l + few >= k, panel);
    }
}

void pack_a(bool transpose, const Stored& a, std::int64_t m, std::int64_t k, float* packed) {
  if (a.element == Element::f32)
    pack_a_of(transpose, Source<float>(a), m, k, packed);
  else if (a.element == Element::f16)
    pack_a_of(transpose, Source<Half>(a), m, k, packed);
  else
    pack_a_of(transpose, Source<BFloat16>(a), m, k, packed);
}

template <class Source, class P>
void pack_b_of(bool transpose, const Source& b, std::int64_t k, std::int64_t n, P* packed, std::int64_t panel_stride) {
  const auto place = [packed, panel_stride](std::int64_t column) {
    return packed + column / panel_columns * panel_stride + column % panel_columns;
  };
  if (transpose) {
    for (std::int64_t column = 0; column < n; column += lanes)
      for (std::int64_t l = 0; l < k; l += lanes) {
        const int count = vector_part(k, l);
        vfloat turned[lanes];
        load_turned(b, column, l, vector_part(n, column), count, turned);
        for (int i = 0; i < count; ++i) store(place(column) + (l + i) * panel_columns, turned[i]);
      }
    return;
  }
  for (std::int64_t l = 0; l < k; ++l)  // a row of B lies in one page, a column of it in k
    for (std::int64_t column = 0; column < n; column += lanes)
      store(place(column) + l * panel_columns, b.read(l, column, vector_part(n, column)));
}

#if defined(__AVX512BF16__)
void pack_words(bool transpose, const Stored& a, std::int64_t m, std::int64_t k, float* packed) {
  if (a.element == Element::f32)
    pack_a_of(false, PairsAlong<float>(a, k), m, words_of(k), packed);
  else if (transpose)
    pack_a_of(true, PairsAcross(a, k), m, words_of(k), packed);
  else
    pack_a_of(false, PairsAlong<BFloat16>(a, k), m, words_of(k), packed);
}
void pack_b_words(bool transpose, const Stored& b, std::int64_t k, std::int64_t n, const StoredOut& packed) {
  auto* to = static_cast<float*>(packed.data);
  if (transpose)
    pack_b_of(true, PairsAlong<BFloat16>(b, k), words_of(k), n, to, packed.stride / 2);
  else
    pack_b_of(false, PairsAcross(b, k), words_of(k), n, to, packed.stride / 2);
}
#endif

void pack_b(bool transpose, const Stored& b, std::int64_t k, std::int64_t n, const StoredOut& packed) {
#if defined(__AVX512BF16__)
  if (packed.element == Element::bf16) return pack_b_words(transpose, b, k, n, packed);
#endif
  const auto from = [&](auto source) {
    using T = decltype(source);
    if (packed.element == Element::f32)
      pack_b_of(transpose, Source<T>(b), k, n, static_cast<float*>(packed.data), packed.stride);
    else
      pack_b_of(transpose, Source<T>(b), k, n, static_cast<T*>(packed.data), packed.stride);
  };
  if (b.element == Element::f32)
    from(0.0F);
  else if (b.element == Element::f16)
    from(Half{});
  else
    from(BFloat16{});
}

void convert(std::int64_t rows, std::int64_t columns, const Stored& from, const StoredOut& to) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; c += lanes) {
      const int count = vector_part(columns, c);
      write(to, r, c, read(from, r, c, count), count);
    }
}

#if defined(__AVX512BF16__)
constexpr auto pack_pairs = pack_words;
#else
constexpr decltype(GemmKernels::pack_words) pack_pairs = nullptr;
#endif

}  // namespace

const GemmKernels gemm_kernels{.rows = max_rows,
                               .panel_columns = panel_columns,
                               .slack = lanes,
                               .pack_a = pack_a,
                               .pack_words = pack_pairs,
                               .pack_b = pack_b,
                               .multiply = multiply,
                               .convert = convert};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
