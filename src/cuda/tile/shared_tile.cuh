// Tiles of 16-bit elements in shared memory whose 16-byte pieces are swizzled, so that eight rows of one column of pieces lie in
// all 32 banks: the piece c of row r stands at c xor (r mod 8). Rows have 64 elements or a multiple of it.
#pragma once

#include "cuda/ptx/matrix.cuh"

#include <type_traits>

namespace everglow::cuda {

/// What a thread block copies from: rows of `width` elements that begin at `data`, row_stride elements apart. Rows outside of
/// [first_row, end_row) and columns from `width` on are read as 0 and not touched in memory.
template <class T>
struct TileSource {
  const T* data = nullptr;
  int64_t row_stride = 0;
  int first_row = 0, end_row = 0;
  int width = 0;
  bool aligned = true;  // rows begin at multiples of 16 bytes, and the width is a multiple of 8
};

template <class T, int columns>
struct SharedTile {
  static_assert(columns % 64 == 0, "eight pieces of a row are swizzled with each other");
  static constexpr int row_bytes = columns * 2;

  /// Byte offset of piece `piece` (8 elements) of row `row`.
  __device__ static __forceinline__ uint32_t offset(int row, int piece) {
    return static_cast<uint32_t>(row * row_bytes + ((piece ^ (row & 7)) << 4));
  }

  /// Where this lane points for load_matrices of 16 rows x 16 columns from (0, 0): rows first (a of mma; b of mma transposed).
  __device__ static __forceinline__ uint32_t rows_first(uint32_t tile, int lane) { return tile + offset(lane & 15, lane >> 4); }
  /// The same with the columns first (b of mma; a of mma transposed).
  __device__ static __forceinline__ uint32_t columns_first(uint32_t tile, int lane) {
    return tile + offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  }
  /// That place moved by 16-row and 16-column steps: the swizzle meets only the column bits that lie within 128 bytes.
  __device__ static __forceinline__ uint32_t step(uint32_t place, int rows16, int columns16) {
    return (place ^ static_cast<uint32_t>((columns16 & 3) << 5)) +
           static_cast<uint32_t>(rows16 * 16 * row_bytes + (columns16 >> 2) * 128);
  }

  /// All threads of the block copy `rows` rows, the first of which is row `row` of the source, without waiting.
  template <int rows, int threads, bool any_alignment>
  __device__ static __forceinline__ void load(uint32_t tile, const TileSource<T>& source, int row) {
    constexpr int pieces = columns / 8, rows_at_once = threads / pieces;
    static_assert(threads % pieces == 0 && rows % rows_at_once == 0, "each thread copies the same piece of several rows");
    const int thread = static_cast<int>(threadIdx.x), piece = thread % pieces, first = thread / pieces;
    if (any_alignment && !source.aligned) return load_elements<rows, threads>(tile, source, row);
    const bool inside = piece * 8 < source.width;
    const T* from = source.data + static_cast<int64_t>(row + first) * source.row_stride + piece * 8;
#pragma unroll
    for (int i = 0; i < rows / rows_at_once; ++i) {
      const int r = first + i * rows_at_once;
      const bool read = inside && row + r >= source.first_row && row + r < source.end_row;
      ptx::copy_16_async(tile + offset(r, piece), read ? from : source.data, read ? 16 : 0);
      from += rows_at_once * source.row_stride;
    }
  }

  /// Elements 2 pair and 2 pair + 1 of a piece.
  __device__ static __forceinline__ uint32_t read(uint32_t tile, int row, int piece, int pair) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(tile + offset(row, piece) + 4 * pair) : "memory");
    return word;
  }
  __device__ static __forceinline__ void write(uint32_t tile, int row, int piece, int pair, uint32_t word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + offset(row, piece) + 4 * pair), "r"(word) : "memory");
  }
  __device__ static __forceinline__ uint4 read_piece(uint32_t tile, int row, int piece) {
    uint4 words;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(tile + offset(row, piece))
                 : "memory");
    return words;
  }
  __device__ static __forceinline__ void write_piece(uint32_t tile, int row, int piece, const uint4& words) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(tile + offset(row, piece)), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
  }

  /// Writes a piece to a row of `width` elements in global memory.
  __device__ static __forceinline__ void store_piece(T* row, int piece, int width, bool aligned, const uint4& words) {
    if (aligned) {
      if (piece * 8 < width) *reinterpret_cast<uint4*>(row + piece * 8) = words;
      return;
    }
    const uint32_t parts[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (piece * 8 + e < width)
        reinterpret_cast<uint16_t*>(row)[piece * 8 + e] = static_cast<uint16_t>(parts[e / 2] >> (e % 2 * 16));
  }

  /// Infinity and NaN have an exponent of ones: one more carries into the sign.
  static constexpr uint32_t exponent = std::is_same_v<T, __half> ? 0x7C00U : 0x7F80U;
  static constexpr uint32_t exponents = exponent << 16 | exponent;
  static constexpr uint32_t one_more = exponent == 0x7C00U ? 0x04000400U : 0x00800080U;
  __device__ static __forceinline__ uint32_t not_finite(uint32_t pair) { return ((pair & exponents) + one_more) & 0x80008000U; }
  /// Element `which` of a pair where it is not finite, else 0.
  __device__ static __forceinline__ float not_finite_part(uint32_t pair, int which) {
    const uint16_t bits = static_cast<uint16_t>(which == 0 ? pair : pair >> 16);
    if ((bits & exponent) != exponent) return 0;
    return (bits & ~exponent & 0x7FFFU) != 0 ? NAN : (bits & 0x8000U) != 0 ? -INFINITY : INFINITY;
  }
  __device__ static __forceinline__ uint32_t finite(uint32_t pair) {
    if ((pair & exponent) == exponent) pair &= 0xFFFF0000U;
    if ((pair >> 16 & exponent) == exponent) pair &= 0xFFFFU;
    return pair;
  }
  /// Whether any element is not finite that this thread copied with `load` of the same size; it needs no barrier for that.
  template <int rows, int threads>
  __device__ static __forceinline__ bool copied_not_finite(uint32_t tile) {
    constexpr int pieces = columns / 8;
    uint32_t found = 0;
    for (int r = static_cast<int>(threadIdx.x) / pieces; r < rows; r += threads / pieces) {
      const uint4 words = read_piece(tile, r, static_cast<int>(threadIdx.x) % pieces);
      found |= not_finite(words.x) | not_finite(words.y) | not_finite(words.z) | not_finite(words.w);
    }
    return found != 0;
  }
  /// The block makes 0 of every element that is not finite, and calls mark(row) for rows that had one.
  template <int rows, int threads, class Mark>
  __device__ static __forceinline__ void make_finite(uint32_t tile, const Mark& mark) {
    constexpr int pieces = columns / 8;
    const int piece = static_cast<int>(threadIdx.x) % pieces;
    for (int r = static_cast<int>(threadIdx.x) / pieces; r < rows; r += threads / pieces) {
      const uint4 words = read_piece(tile, r, piece);
      if ((not_finite(words.x) | not_finite(words.y) | not_finite(words.z) | not_finite(words.w)) == 0) continue;
      write_piece(tile, r, piece, {finite(words.x), finite(words.y), finite(words.z), finite(words.w)});
      mark(r);
    }
  }

 private:
  /// `load` for rows that do not begin at multiples of 16 bytes: element by element, and each thread writes what `load` would.
  template <int rows, int threads>
  __device__ static __noinline__ void load_elements(uint32_t tile, const TileSource<T>& source, int row) {
    constexpr int pieces = columns / 8;
    const int piece = static_cast<int>(threadIdx.x) % pieces;
    for (int r = static_cast<int>(threadIdx.x) / pieces; r < rows; r += threads / pieces) {
      uint32_t words[4] = {};
      if (row + r >= source.first_row && row + r < source.end_row) {
        const T* from = source.data + static_cast<int64_t>(row + r) * source.row_stride + piece * 8;
        for (int e = 0; e < 8; ++e)
          if (piece * 8 + e < source.width)
            words[e / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[e]) << (e % 2 * 16);
      }
      write_piece(tile, r, piece, {words[0], words[1], words[2], words[3]});
    }
  }
};

}  // namespace everglow::cuda
