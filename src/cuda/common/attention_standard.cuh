// Standard attention, the kernels: scores, softmax and products one after the other, with the matrices of scores in memory, for a
// part of the rows at a time. Every storage type, size, alignment and stride; arithmetic is f32 without matrix instructions.
#pragma once

#include "cuda/common/attention_rows.cuh"

namespace everglow::cuda {

/// A part of the queries of a part of the (batch, head) pairs, and the matrices [pairs, rows, keys] of it.
struct StandardPart {
  int first_pair = 0, pairs = 0, first_row = 0, rows = 0;
  float* p = nullptr;                  // scores, then probabilities
  float* ds = nullptr;                 // gradients by the scores
  float* bend = nullptr;               // derivative of softcap; null: 1
  float* delta = nullptr;              // [pairs, rows]
  float *dk = nullptr, *dv = nullptr;  // [B, Hk, keys, D or Dv] sums over all parts; null: not wanted
};

constexpr int standard_tile = 64, standard_depth = 16, standard_threads = 256;

/// Where a thread block works: a tile of the matrix of one pair.
struct StandardPlace {
  int pair, b, h, row, column;  // row and column: first of the tile, within the part
};
__device__ inline StandardPlace standard_place(const AttentionParams& p, int first_pair, int row_tiles, int column_tiles) {
  const int64_t index = blockIdx.x, tile = index % (static_cast<int64_t>(row_tiles) * column_tiles);
  const int pair = static_cast<int>(index / (static_cast<int64_t>(row_tiles) * column_tiles)), all = first_pair + pair;
  return {pair, all / p.heads, all % p.heads, static_cast<int>(tile / column_tiles) * standard_tile,
          static_cast<int>(tile % column_tiles) * standard_tile};
}
__device__ __host__ inline int standard_tiles(int n) { return (n + standard_tile - 1) / standard_tile; }

/// A thread's 4 x 4 part of a 64 x 64 tile: rows and columns thread/16 + 16 i and thread mod 16 + 16 i.
struct StandardSums {
  float sum[4][4] = {};

  /// sum += Σ_k a(row, k) b(k, column); where a is 0, b counts for nothing, NaN or not.
  template <class A, class B>
  __device__ __forceinline__ void add(int depth, const A& a, const B& b) {
    __shared__ float left[standard_depth][standard_tile + 1], right[standard_depth][standard_tile + 1];
    const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
    for (int k0 = 0; k0 < depth; k0 += standard_depth) {
      __syncthreads();
      for (int i = 0; i < 4; ++i) {
        const int k = k0 + x, at = y + 16 * i;
        left[x][at] = k < depth ? a(at, k) : 0;
        right[x][at] = k < depth ? b(k, at) : 0;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < standard_depth; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float factor = left[k][y + 16 * i];
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (factor != 0) sum[i][j] = fmaf(factor, right[k][x + 16 * j], sum[i][j]);
        }
    }
  }
  /// f(row, column, sum) for each element.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) f(y + 16 * i, x + 16 * j, sum[i][j]);
  }
};

template <class T>
__device__ inline const T* row_at(const AttentionTensor& t, int b, int h, int64_t row) {
  return static_cast<const T*>(t.data) + b * t.batch + h * t.head + row * t.row;
}
__device__ inline float statistic_at(const AttentionStatistic& t, int b, int h, int64_t row) {
  return t.data[b * t.batch + h * t.head + row * t.row];
}
__device__ inline int64_t score_index(const AttentionParams& p, const StandardPart& part, int pair, int row) {
  return (static_cast<int64_t>(pair) * part.rows + row) * p.keys;
}
/// Keys that query i sees; none past the lengths.
__device__ inline bool sees_key(const AttentionParams& p, const AttentionSequence& s, int i, int j) {
  return i < s.queries && j < end_key(p, s, i) && j >= begin_key(p, s, i);
}

/// Scores, -inf where a key is not seen; backward: probabilities by LSE, 0 there.
template <class T, bool backward>
__global__ void __launch_bounds__(standard_threads)
    standard_scores(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const StandardPlace at = standard_place(p, part.first_pair, standard_tiles(part.rows), standard_tiles(p.keys));
  const AttentionSequence s = attention_sequence(p, at.b);
  const AttentionOptions<T> options(p, s, at.b, at.h);
  const int first = part.first_row + at.row;
  StandardSums product;
  product.add(
      p.head_dim,
      [&](int r, int d) { return first + r < s.queries ? widen(row_at<T>(p.q, at.b, at.h, s.first_query + first + r)[d]) : 0; },
      [&](int d, int j) {
        return at.column + j < s.keys ? widen(row_at<T>(p.k, at.b, at.h / p.group, s.first_key + at.column + j)[d]) : 0;
      });
  product.each([&](int r, int c, float sum) {
    const int i = first + r, j = at.column + c;
    if (at.row + r >= part.rows || j >= p.keys) return;
    const int64_t index = score_index(p, part, at.pair, at.row + r) + j;
    const bool sees = sees_key(p, s, i, j) && !options.hides(p, i, j);
    float bend = 1, value = sees ? options.natural_score(p, sum, i, j, bend) : -INFINITY;
    if (backward) {
      const float lse = sees ? statistic_at(p.lse, at.b, at.h, s.first_query + i) : -INFINITY;
      value = lse == -INFINITY ? 0 : expf(value - lse);
      if (part.bend != nullptr) part.bend[index] = bend;
    }
    part.p[index] = value;
  });
}

__device__ inline float block_reduce(float x, bool maximum) {
  __shared__ float parts[standard_threads / 32];
  const auto join = [&](float a, float b) { return maximum ? fmaxf(a, b) : a + b; };
  for (int mask = 16; mask > 0; mask /= 2) x = join(x, __shfl_xor_sync(0xffffffffU, x, mask));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int i = 1; i < standard_threads / 32; ++i) x = join(x, parts[i]);
  return x;
}

/// One row: scores to probabilities after dropout, and LSE.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_softmax(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const int pair = static_cast<int>(blockIdx.x / static_cast<unsigned>(part.rows));
  const int row = static_cast<int>(blockIdx.x % static_cast<unsigned>(part.rows)), all = part.first_pair + pair;
  const int b = all / p.heads, h = all % p.heads, i = part.first_row + row;
  const AttentionSequence s = attention_sequence(p, b);
  if (i >= s.all_queries) return;
  const AttentionOptions<T> options(p, s, b, h);
  float* const scores = part.p + score_index(p, part, pair, row);
  float top = -INFINITY, sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < p.keys; j += standard_threads) top = fmaxf(top, scores[j]);
  top = block_reduce(top, true);
  const float shift = top == -INFINITY ? 0 : top;
  for (int j = static_cast<int>(threadIdx.x); j < p.keys; j += standard_threads) sum += expf(scores[j] - shift);
  sum = block_reduce(sum, false);
  const bool none = sum == 0;
  for (int j = static_cast<int>(threadIdx.x); j < p.keys; j += standard_threads) {
    const bool keep = !p.drops || options.keeps(p, i, j);
    scores[j] = none || !keep ? 0 : expf(scores[j] - shift) / sum * p.kept;
  }
  if (p.lse.data != nullptr && threadIdx.x == 0)
    p.lse.data[b * p.lse.batch + h * p.lse.head + static_cast<int64_t>(s.first_query + i) * p.lse.row] =
        none ? -INFINITY : shift + logf(sum);
}

/// o = P V.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_values(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const StandardPlace at = standard_place(p, part.first_pair, standard_tiles(part.rows), standard_tiles(p.value_dim));
  const AttentionSequence s = attention_sequence(p, at.b);
  StandardSums product;
  product.add(
      s.keys,
      [&](int r, int j) {
        const bool inside = at.row + r < part.rows && part.first_row + at.row + r < s.queries;
        return inside ? part.p[score_index(p, part, at.pair, at.row + r) + j] : 0;
      },
      [&](int j, int c) {
        return at.column + c < p.value_dim ? widen(row_at<T>(p.v, at.b, at.h / p.group, s.first_key + j)[at.column + c]) : 0;
      });
  product.each([&](int r, int c, float sum) {
    const int i = part.first_row + at.row + r;
    if (at.row + r >= part.rows || i >= s.all_queries || at.column + c >= p.value_dim) return;
    const_cast<T*>(row_at<T>(p.o, at.b, at.h, s.first_query + i))[at.column + c] = static_cast<T>(sum);
  });
}

/// Sum of dO o less the gradient of LSE; one warp a row.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_delta(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const int64_t cell = (static_cast<int64_t>(blockIdx.x) * standard_threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (cell >= static_cast<int64_t>(part.pairs) * part.rows) return;
  const int all = part.first_pair + static_cast<int>(cell / part.rows), b = all / p.heads, h = all % p.heads;
  const int i = part.first_row + static_cast<int>(cell % part.rows);
  const AttentionSequence s = attention_sequence(p, b);
  if (i >= s.queries) return;
  float sum = 0;
  if (p.d_o.data != nullptr)
    for (int d = lane; d < p.value_dim; d += 32)
      sum += widen(row_at<T>(p.d_o, b, h, s.first_query + i)[d]) * widen(row_at<T>(p.o, b, h, s.first_query + i)[d]);
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
  if (p.dlse.data != nullptr) sum -= statistic_at(p.dlse, b, h, s.first_query + i);
  if (lane == 0) part.delta[cell] = sum;
}

/// dS = P (dP - delta), and P after dropout.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_score_gradients(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const StandardPlace at = standard_place(p, part.first_pair, standard_tiles(part.rows), standard_tiles(p.keys));
  const AttentionSequence s = attention_sequence(p, at.b);
  const AttentionOptions<T> options(p, s, at.b, at.h);
  const int first = part.first_row + at.row;
  StandardSums product;
  product.add(
      p.d_o.data != nullptr ? p.value_dim : 0,
      [&](int r, int d) { return first + r < s.queries ? widen(row_at<T>(p.d_o, at.b, at.h, s.first_query + first + r)[d]) : 0; },
      [&](int d, int j) {
        return at.column + j < s.keys ? widen(row_at<T>(p.v, at.b, at.h / p.group, s.first_key + at.column + j)[d]) : 0;
      });
  product.each([&](int r, int c, float dp) {
    const int i = first + r, j = at.column + c;
    if (at.row + r >= part.rows || j >= p.keys) return;
    const int64_t index = score_index(p, part, at.pair, at.row + r) + j;
    const float weight = part.p[index];
    if (weight == 0) {  // where nothing is seen, dP may be NaN
      part.ds[index] = 0;
      return;
    }
    const float kept = !p.drops ? 1 : options.keeps(p, i, j) ? p.kept : 0;
    part.ds[index] = weight * ((kept == 0 ? 0 : kept * dp) - part.delta[static_cast<int64_t>(at.pair) * part.rows + at.row + r]);
    part.p[index] = weight * kept;
  });
}

/// Element (row, head, i, j) of dbias, summed over the rows and heads that share it, which are all in this part.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_bias(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part, int bias_rows,
                  int bias_heads) {
  const int64_t cell = static_cast<int64_t>(blockIdx.x) * standard_threads + threadIdx.x;
  const int64_t plane = static_cast<int64_t>(part.rows) * p.keys;
  if (cell >= plane * bias_rows * bias_heads) return;
  const int j = static_cast<int>(cell % p.keys), row = static_cast<int>(cell / p.keys % part.rows);
  const int head = static_cast<int>(cell / plane % bias_heads), batch = static_cast<int>(cell / plane / bias_heads);
  float sum = 0;
  for (int b = bias_rows == 1 ? 0 : batch; b < (bias_rows == 1 ? p.batch : batch + 1); ++b)
    for (int h = bias_heads == 1 ? 0 : head; h < (bias_heads == 1 ? p.heads : head + 1); ++h)
      sum += part.ds[score_index(p, part, b * p.heads + h, row) + j];
  static_cast<T*>(
      p.dbias.data)[batch * p.dbias.batch + head * p.dbias.head + (part.first_row + row) * p.dbias.query + j * p.dbias.key] =
      static_cast<T>(sum);
}

/// The gradient by the product q·k.
__device__ inline float product_gradient(const StandardPart& part, int64_t index) {
  return part.bend == nullptr ? part.ds[index] : part.ds[index] * part.bend[index];
}

template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_query_gradients(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const StandardPlace at = standard_place(p, part.first_pair, standard_tiles(part.rows), standard_tiles(p.head_dim));
  const AttentionSequence s = attention_sequence(p, at.b);
  StandardSums product;
  product.add(
      s.keys,
      [&](int r, int j) {
        const bool inside = at.row + r < part.rows && part.first_row + at.row + r < s.queries;
        return inside ? product_gradient(part, score_index(p, part, at.pair, at.row + r) + j) : 0;
      },
      [&](int j, int c) {
        return at.column + c < p.head_dim ? widen(row_at<T>(p.k, at.b, at.h / p.group, s.first_key + j)[at.column + c]) : 0;
      });
  product.each([&](int r, int c, float sum) {
    const int i = part.first_row + at.row + r;
    if (at.row + r >= part.rows || i >= s.all_queries || at.column + c >= p.head_dim) return;
    const_cast<T*>(row_at<T>(p.dq, at.b, at.h, s.first_query + i))[at.column + c] = static_cast<T>(sum * p.scale);
  });
}

/// What the part's rows add to dK (of = dS and Q) or dV (of = P and dO), over the heads of a group in order.
template <class T, bool values>
__global__ void __launch_bounds__(standard_threads)
    standard_key_gradients(const __grid_constant__ AttentionParams p, const __grid_constant__ StandardPart part) {
  const int width = values ? p.value_dim : p.head_dim;
  const int64_t tiles = static_cast<int64_t>(standard_tiles(p.keys)) * standard_tiles(width), tile = blockIdx.x % tiles;
  const int kv_pair = part.first_pair / p.group + static_cast<int>(blockIdx.x / tiles), b = kv_pair / p.kv_heads;
  const int key = static_cast<int>(tile / standard_tiles(width)) * standard_tile;
  const int column = static_cast<int>(tile % standard_tiles(width)) * standard_tile;
  const AttentionSequence s = attention_sequence(p, b);
  const AttentionTensor& other = values ? p.d_o : p.q;
  StandardSums product;
  for (int g = 0; g < p.group; ++g) {
    const int all = kv_pair * p.group + g, pair = all - part.first_pair, h = all % p.heads;
    if (pair < 0 || pair >= part.pairs) continue;
    product.add(
        min(part.rows, s.queries - part.first_row),
        [&](int c, int r) {
          const int64_t index = score_index(p, part, pair, r) + key + c;
          return key + c >= p.keys ? 0 : values ? part.p[index] : product_gradient(part, index);
        },
        [&](int r, int c) {
          return column + c < width ? widen(row_at<T>(other, b, h, s.first_query + part.first_row + r)[column + c]) : 0;
        });
  }
  float* const to = (values ? part.dv : part.dk) + static_cast<int64_t>(kv_pair) * p.keys * width;
  product.each([&](int r, int c, float sum) {
    if (key + r < p.keys && column + c < width) to[static_cast<int64_t>(key + r) * width + column + c] += sum;
  });
}

/// Sums to dK or dV; rows past a length are 0.
template <class T>
__global__ void __launch_bounds__(standard_threads)
    standard_store(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionTensor to, const float* from,
                   int width, float times) {
  const int64_t cell = static_cast<int64_t>(blockIdx.x) * standard_threads + threadIdx.x;
  if (cell >= static_cast<int64_t>(p.batch) * p.kv_heads * p.keys * width) return;
  const int column = static_cast<int>(cell % width), j = static_cast<int>(cell / width % p.keys);
  const int pair = static_cast<int>(cell / width / p.keys), b = pair / p.kv_heads, h = pair % p.kv_heads;
  const AttentionSequence s = attention_sequence(p, b);
  if (j < s.all_keys)
    const_cast<T*>(row_at<T>(to, b, h, s.first_key + j))[column] = static_cast<T>(j < s.keys ? from[cell] * times : 0);
}

}  // namespace everglow::cuda
