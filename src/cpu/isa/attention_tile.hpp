// What the attention blocks are made of: products of small matrices in register tiles, and transposes between rows and the layout
// with queries side by side in vectors. Internal linkage, as core/simd.hpp. Included by the attention sources of this folder only.
#pragma once

#include "core/simd.hpp"

#include "cpu/isa/attention_kernels.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr int most_vectors = 4;                      // vectors side by side in a register tile
constexpr int block_queries = most_vectors * lanes;  // M
constexpr int block_keys = 64;                       // N
constexpr int most_blocks = 4;                       // R
constexpr bool many_registers = lanes == 16;         // 32 of them; else 16

/// Rows of a register tile of NV vectors: accumulators, one row of B and one broadcast fit in the registers, and there are at
/// least the 8 accumulators that two multipliers of 4 cycles keep busy.
template <int NV>
constexpr int tile_rows = many_registers ? (NV <= 2   ? 12
                                            : NV == 3 ? 8
                                                      : 6)
                                         : (NV == 1   ? 8
                                            : NV == 2 ? 6
                                            : NV == 3 ? 4
                                                      : 3);
constexpr int fewer_rows(int rows) { return rows > 8 ? 8 : rows > 4 ? 4 : rows > 2 ? 2 : 1; }

/// C[m, NV vectors] (+)= A[m, k] · B[k, NV vectors]. A is row-major (lda between rows) or, ATransposed, stored [k, m].
struct Product {
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  std::int64_t m, k;
  bool accumulate;       // C is added to
  const float* rescale;  // [NV vectors]: C is multiplied by it before the sum (with accumulate); null: by 1
};

template <int MR, int NV, bool ATransposed>
inline void tile(const Product& p, std::int64_t row) {
  vfloat sum[MR][NV];
  float* const c = p.c + row * p.ldc;
  const bool keep = p.accumulate, scaled = p.rescale != nullptr;
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      sum[r][v] = keep ? load(c + r * p.ldc + v * lanes) : vfloat{};
      if (scaled) sum[r][v] *= load(p.rescale + v * lanes);
    }
  const float* a = p.a + (ATransposed ? row : row * p.lda);
  const float* b = p.b;
  for (std::int64_t k = 0; k < p.k; ++k, b += p.ldb) {
    vfloat x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) x[v] = load(b + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const vfloat y = splat(ATransposed ? a[r] : a[r * p.lda]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[r][v] += y * x[v];
    }
    a += ATransposed ? p.lda : 1;
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) store(c + r * p.ldc + v * lanes, sum[r][v]);
}

template <int MR, int NV, bool ATransposed>
inline void tiles_from(const Product& p, std::int64_t row) {
  for (; row + MR <= p.m; row += MR) tile<MR, NV, ATransposed>(p, row);
  if constexpr (MR > 1) {
    if (row < p.m) tiles_from<fewer_rows(MR), NV, ATransposed>(p, row);
  }
}

template <int NV, bool ATransposed>
__attribute__((noinline)) void multiply(const Product& p) {
  tiles_from<tile_rows<NV>, NV, ATransposed>(p, 0);
}

/// As multiply with any number of vectors in a row of B and C.
template <bool ATransposed = false>
inline void multiply_wide(Product p, std::int64_t vectors) {
  for (; vectors > 0; vectors -= most_vectors, p.b += block_queries, p.c += block_queries) {
    if (vectors >= 4)
      multiply<4, ATransposed>(p);
    else if (vectors == 3)
      multiply<3, ATransposed>(p);
    else if (vectors == 2)
      multiply<2, ATransposed>(p);
    else
      multiply<1, ATransposed>(p);
  }
}

/// Rows whose storage is known while compiling.
template <class S>
struct Rows {
  const S* data;
  std::int64_t stride;
};
template <class S>
struct Output {
  S* data;
  std::int64_t stride;
};
template <class F>
inline void with_rows(const StoredRows& rows, const F& f) {
  if (rows.storage == FlashStorage::f32)
    f(Rows<float>{static_cast<const float*>(rows.data), rows.stride});
  else if (rows.storage == FlashStorage::f16)
    f(Rows<Half>{static_cast<const Half*>(rows.data), rows.stride});
  else
    f(Rows<BFloat16>{static_cast<const BFloat16*>(rows.data), rows.stride});
}
template <class F>
inline void with_output(const StoredOutput& rows, const F& f) {
  if (rows.storage == FlashStorage::f32)
    f(Output<float>{static_cast<float*>(rows.data), rows.stride});
  else if (rows.storage == FlashStorage::f16)
    f(Output<Half>{static_cast<Half*>(rows.data), rows.stride});
  else
    f(Output<BFloat16>{static_cast<BFloat16*>(rows.data), rows.stride});
}
constexpr std::int64_t bytes_of(FlashStorage storage) { return storage == FlashStorage::f32 ? 4 : 2; }
/// From another row on, or from another element on.
inline StoredRows moved(const StoredRows& rows, std::int64_t elements) {
  return {static_cast<const char*>(rows.data) + elements * bytes_of(rows.storage), rows.stride, rows.storage};
}
inline StoredRows rows_from(const StoredRows& rows, std::int64_t first) { return moved(rows, first * rows.stride); }
inline StoredOutput rows_from(const StoredOutput& rows, std::int64_t first) {
  return {static_cast<char*>(rows.data) + first * rows.stride * bytes_of(rows.storage), rows.stride, rows.storage};
}
inline StoredOutput stored(float* data, std::int64_t stride) { return {data, stride, FlashStorage::f32}; }

/// Columns [column, column + lanes) of up to `lanes` rows; zeros beyond `count` rows and `width` columns.
template <class S>
inline void load_square(vfloat (&square)[lanes], const Rows<S>& rows, std::int64_t first, std::int64_t count, std::int64_t column,
                        std::int64_t width) {
  const S* const p = rows.data + first * rows.stride + column;
  const bool whole = column + lanes <= width;
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    if (first + i >= count)
      square[i] = vfloat{};
    else if (whole)
      square[i] = load(p + i * rows.stride);
    else
      square[i] = load_part(p + i * rows.stride, static_cast<int>(width - column));
  }
}

/// to[width, M-vectors of NV] = scale · rows[count, width] transposed; queries beyond count are zeros.
template <int NV>
__attribute__((noinline)) void pack_transposed(const StoredRows& from, std::int64_t count, std::int64_t width, float scale,
                                               float* to) {
  with_rows(from, [=](const auto& rows) {
    for (int v = 0; v < NV; ++v)
      for (std::int64_t column = 0; column < width; column += lanes) {
        vfloat square[lanes];
        load_square(square, rows, v * lanes, count, column, width);
        transpose(square);
        float* const out = to + column * NV * lanes + v * lanes;
        const int kept = static_cast<int>(width - column < lanes ? width - column : lanes);
        for (int i = 0; i < kept; ++i) store(out + i * NV * lanes, square[i] * scale);
      }
  });
}

/// rows[count, width] = from[width, M-vectors of NV] transposed, each query times its factor[M].
template <int NV>
__attribute__((noinline)) void unpack_transposed(const float* from, const float* factor, std::int64_t count, std::int64_t width,
                                                 const StoredOutput& to) {
  with_output(to, [=](const auto& rows) {
    for (int v = 0; v < NV; ++v) {
      const vfloat times = load(factor + v * lanes);
      const int here = static_cast<int>(count - v * lanes < lanes ? count - v * lanes : lanes);
      for (std::int64_t column = 0; column < width; column += lanes) {
        const int kept = static_cast<int>(width - column < lanes ? width - column : lanes);
        vfloat square[lanes];
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i)
          square[i] = i < kept ? load(from + (column + i) * NV * lanes + v * lanes) * times : vfloat{};
        transpose(square);
        const auto out = rows.data + v * lanes * rows.stride + column;
        for (int i = 0; i < here; ++i) {
          if (kept == lanes)
            store(out + i * rows.stride, square[i]);
          else
            store_part(out + i * rows.stride, square[i], kept);
        }
      }
    }
  });
}

constexpr std::int64_t whole_vectors(std::int64_t n) { return (n + lanes - 1) / lanes; }
/// Row stride of gathered rows.
constexpr std::int64_t wide(std::int64_t n) { return (whole_vectors(n) + 1) * lanes; }

/// f32 rows as they lie where they follow each other and are whole vectors, else a copy in f32 padded with zeros. Rows far apart
/// cost a page and, where the stride is a large power of two, the same few sets of the caches: a tile that reads them again and
/// again would miss each time.
__attribute__((noinline)) FlashRows gathered(const StoredRows& from, std::int64_t count, std::int64_t width, float* copy) {
  if (from.storage == FlashStorage::f32 && from.stride == width && width % lanes == 0 && width <= 256)
    return {static_cast<const float*>(from.data), width};
  const std::int64_t stride = wide(width), whole = width / lanes * lanes;
  with_rows(from, [=](const auto& rows) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = rows.data + i * rows.stride;
      float* const to = copy + i * stride;
      for (std::int64_t e = 0; e < whole; e += lanes) store(to + e, load(row + e));
      if (whole < width) store(to + whole, load_part(row + whole, static_cast<int>(width - whole)));
    }
  });
  return {copy, stride};
}
/// f32 rows as they lie, else a copy in f32.
inline FlashRows in_floats(const StoredRows& from, std::int64_t count, std::int64_t width, float* copy) {
  if (from.storage == FlashStorage::f32) return {static_cast<const float*>(from.data), from.stride};
  return gathered(from, count, width, copy);
}

/// rows[count, width] in the storage of a tensor.
inline __attribute__((noinline)) void put_rows(const FlashRows& rows, std::int64_t count, std::int64_t width,
                                               const StoredOutput& to) {
  with_output(to, [=](const auto& out) {
    const std::int64_t whole = width / lanes * lanes;
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const from = rows.data + i * rows.stride;
      const auto row = out.data + i * out.stride;
      for (std::int64_t e = 0; e < whole; e += lanes) store(row + e, load(from + e));
      const int rest = static_cast<int>(width - whole);
      if (rest > 0) store_part(row + whole, load_part(from + whole, rest), rest);
    }
  });
}
/// Where f32 rows of an output are made: in their place, or in scratch from which put_rows takes them.
inline FlashOutput made_in(const StoredOutput& out, float* scratch, std::int64_t width) {
  if (out.storage == FlashStorage::f32) return {static_cast<float*>(out.data), out.stride};
  return {scratch, width};
}

inline vfloat infinity() { return splat(__builtin_inff()); }

/// log x for x >= 0 within 2 units in the last place (Cephes' logf): -inf for 0, NaN for NaN.
inline vfloat vlog(vfloat x) {
  const vint bits = reinterpret_cast<vint>(x);
  vfloat m = reinterpret_cast<vfloat>((bits & 0x007FFFFF) | 0x3F000000);  // [0.5, 1)
  vfloat e = __builtin_convertvector((bits >> 23) - 126, vfloat);
  const vint low = m < 0.707106781F;
  e = low ? e - 1.0F : e;
  m = low ? m + m - 1.0F : m - 1.0F;
  const vfloat z = m * m;
  vfloat p = splat(7.0376836292e-2F);
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  p = p * m * z - e * 2.12194440e-4F - 0.5F * z;
  const vfloat value = m + p + e * 0.693359375F;
  const vfloat ordinary = x < infinity() ? value : x;  // inf and NaN stay
  return x == 0.0F ? -infinity() : ordinary;
}

/// Sums of `lanes` vectors, in the lanes of one.
inline vfloat sums_of(vfloat (&a)[lanes]) {
#pragma GCC unroll 4
  for (int width = lanes / 2; width > 0; width /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) a[i] = interleave_low(a[i], a[i + width]) + interleave_high(a[i], a[i + width]);
  return a[0];
}

/// Keys [first, end) of each query in the lanes of NV vectors. Lanes beyond the queries see what the last query sees.
template <int NV>
struct Sight {
  vint first[NV], end[NV];
  std::int64_t all_from, all_to;  // every query sees the keys in [all_from, all_to)
  std::int64_t any_from, any_to;  // no query sees others

  void set(const FlashShape& s, std::int64_t first_query) {
    std::int32_t from[NV * lanes], to[NV * lanes];
    all_from = any_to = 0, all_to = any_from = s.key_end;
    for (int i = 0; i < NV * lanes; ++i) {
      const std::int64_t query = first_query + i < s.queries ? first_query + i : s.queries - 1;
      from[i] = s.first_key[query], to[i] = s.end_key[query];
      if (from[i] > all_from) all_from = from[i];
      if (to[i] < all_to) all_to = to[i];
      if (from[i] < to[i] && from[i] < any_from) any_from = from[i];
      if (from[i] < to[i] && to[i] > any_to) any_to = to[i];
    }
    __builtin_memcpy(first, from, sizeof from);
    __builtin_memcpy(end, to, sizeof to);
  }
  bool touches(std::int64_t begin, std::int64_t stop) const { return begin < any_to && stop > any_from; }
  bool covers(std::int64_t begin, std::int64_t stop) const { return begin >= all_from && stop <= all_to; }
  vint sees(std::int64_t key, int v) const {
    const vint j = static_cast<std::int32_t>(key) - vint{};
    return (j >= first[v]) & (j < end[v]);
  }
};

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
