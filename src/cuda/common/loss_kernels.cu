// The passes of the classifier loss between its products. One block makes one row: an online pass finds its maximum and the sum of
// its exponentials, and a second one, which the second-level cache serves, writes its gradient over it.
#include "cuda/common/loss_kernels.hpp"

#include "core/visit.hpp"
#include "cuda/common/index_list.cuh"
#include "cuda/common/row_blocks.cuh"

namespace everglow::cuda {
namespace {

constexpr int single_block = 1024;  // threads of a kernel of one block

/// Targets as kernels see them.
struct Targets {
  IndexList list;
  std::int64_t first, classes, ignore_index;

  __device__ std::int64_t operator[](std::int64_t row) const { return list[first + row]; }
  __device__ bool is_class(std::int64_t target) const { return target >= 0 && target < classes; }
  __device__ bool counts(std::int64_t target) const { return target != ignore_index && is_class(target); }
};
Targets targets_of(const LossTargets& t, std::int64_t first) {
  return {.list = index_list_of(t.list), .first = first, .classes = t.classes, .ignore_index = t.ignore_index};
}

struct CountParams {
  Targets targets;
  std::int64_t rows;
  const float* scale;
  bool divide;
  float* count;
  std::uint32_t* status;
  double* factor;
};

__global__ void __launch_bounds__(single_block) count_kernel(const __grid_constant__ CountParams p) {
  long long count = 0;
  bool bad = false;
  for (std::int64_t row = threadIdx.x; row < p.rows; row += single_block) {
    const std::int64_t target = p.targets[row];
    count += p.targets.counts(target) ? 1 : 0;
    bad = bad || (target != p.targets.ignore_index && !p.targets.is_class(target));
  }
  if (bad) note(p.status, status_indices);
  count = sum_of_block(count);
  if (threadIdx.x != 0) return;
  if (p.count != nullptr) *p.count = static_cast<float>(count);
  const double scale = p.scale != nullptr ? static_cast<double>(*p.scale) : 1.0;
  *p.factor = p.divide ? scale / static_cast<double>(count > 1 ? count : 1) : scale;
}

/// A row itself where it counts.
struct CountedRow {
  Targets targets;
  __device__ std::int64_t operator()(std::int64_t row) const { return targets.counts(targets[row]) ? row : -1; }
};

constexpr int V = 4, most_row_threads = 512;

struct RowsParams {
  Targets targets;
  float* logits;
  std::int64_t stride, classes;
  const void* bias;
  bool bias_on_packs;
  double smoothing;
  const double* factor;
  double* losses;
};

__device__ inline float negative_infinity() { return __int_as_float(0xff800000); }

struct Logits {
  float at[V];
};

/// Elements [column, column + V) of a row with their bias; -inf past its end. Rows of logits are whole packs.
template <class T>
__device__ inline Logits load_logits(const RowsParams& p, const float* row, std::int64_t column) {
  const float4 stored = *reinterpret_cast<const float4*>(row + column);
  Logits z{{stored.x, stored.y, stored.z, stored.w}};
  if (p.bias != nullptr && p.bias_on_packs) {
    const Pack<T, V> bias = load_pack<T, V>({p.bias, 0}, 0, column, p.classes);
#pragma unroll
    for (int v = 0; v < V; ++v) z.at[v] += bias.value(v);
  } else if (p.bias != nullptr) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (column + v < p.classes) z.at[v] += widen(static_cast<const T*>(p.bias)[column + v]);
  }
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (column + v >= p.classes) z.at[v] = negative_infinity();
  return z;
}

/// What the logits of a row have in common.
struct RowSums {
  float top, exponentials, values;  // the largest, the sum of exp(z - top), the sum of z
};

template <class T>
__device__ RowSums sums_of_thread(const RowsParams& p, const float* row) {
  RowSums s{negative_infinity(), 0, 0};
  for (std::int64_t column = threadIdx.x * V; column < p.classes; column += blockDim.x * V) {
    const Logits z = load_logits<T>(p, row, column);
    float top = s.top;
#pragma unroll
    for (int v = 0; v < V; ++v) top = fmaxf(top, z.at[v]);
    if (top > s.top) s.exponentials *= expf(s.top - top);
    s.top = top;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (z.at[v] != negative_infinity()) s.exponentials += expf(z.at[v] - top);  // a NaN stays one
      if (column + v < p.classes) s.values += z.at[v];
    }
  }
  return s;
}

/// Of all threads, in every one. Each thread's sum is brought to the row's maximum once, so that joining adds and no more.
__device__ RowSums sums_of_row(RowSums s) {
  constexpr int warps = most_row_threads / 32;
  __shared__ float tops[warps], exponentials[warps], values[warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, there = blockDim.x / 32;
  float top = s.top;
  for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, apart));
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  for (int w = 0; w < there; ++w) top = fmaxf(top, tops[w]);
  float sum = s.exponentials * expf(s.top - top), total = s.values;
  for (int apart = 16; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(~0U, sum, apart);
    total += __shfl_xor_sync(~0U, total, apart);
  }
  if (lane == 0) exponentials[warp] = sum, values[warp] = total;
  __syncthreads();
  s = {top, 0, 0};
  for (int w = 0; w < there; ++w) s.exponentials += exponentials[w], s.values += values[w];
  return s;
}

/// share · value, where a share of 0 takes nothing of a value that is not finite (a logit may be -inf).
__device__ inline double part_of(double share, double value) { return share == 0 ? 0 : share * value; }

/// A gradient of 16 bits lies in the first half of its row: what a round of the loop writes has been read before, by it or by
/// rounds before it.
template <class T>
__device__ void write_gradients(const RowsParams& p, float* row, const RowSums& s, std::int64_t target) {
  const double factor = *p.factor;
  const auto scale = static_cast<float>(factor / s.exponentials), hit = static_cast<float>(factor * (1 - p.smoothing)),
             shift = static_cast<float>(factor * p.smoothing / static_cast<double>(p.classes));
  for (std::int64_t begin = 0; begin < p.classes; begin += blockDim.x * V) {
    const std::int64_t column = begin + threadIdx.x * V;
    Logits z{};
    if (column < p.classes) z = load_logits<T>(p, row, column);
    if constexpr (sizeof(T) < sizeof(float)) __syncthreads();
    if (column >= p.classes) continue;
    float gradient[V];
#pragma unroll
    for (int v = 0; v < V; ++v) gradient[v] = expf(z.at[v] - s.top) * scale - shift - (column + v == target ? hit : 0);
    store_pack<T, V>({row, 0}, 0, column, p.classes, Pack<T, V>::of(gradient));
  }
}

template <class T>
__global__ void __launch_bounds__(most_row_threads) rows_kernel(const __grid_constant__ RowsParams p) {
  float* const row = p.logits + blockIdx.x * p.stride;
  const std::int64_t target = p.targets[blockIdx.x];
  if (!p.targets.counts(target)) {
    for (std::int64_t column = threadIdx.x * V; column < p.classes && p.factor != nullptr; column += blockDim.x * V)
      store_pack<T, V>({row, 0}, 0, column, p.classes, Pack<T, V>::of({}));
    if (threadIdx.x == 0) p.losses[blockIdx.x] = 0;
    return;
  }
  float z_target = 0;
  if (threadIdx.x == 0) z_target = row[target] + (p.bias != nullptr ? widen(static_cast<const T*>(p.bias)[target]) : 0);
  const RowSums s = sums_of_row(sums_of_thread<T>(p, row));
  if (threadIdx.x == 0) {
    const double log_sum = s.top + log(static_cast<double>(s.exponentials));
    p.losses[blockIdx.x] =
        log_sum - part_of(1 - p.smoothing, z_target) - part_of(p.smoothing, s.values / static_cast<double>(p.classes));
  }
  if (p.factor != nullptr) write_gradients<T>(p, row, s, target);
}

__global__ void __launch_bounds__(single_block) sum_kernel(const double* losses, std::int64_t rows, float* loss) {
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += single_block) sum += losses[row];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum);
}

template <class T>
T* written(const TensorView& view) {
  return view.given() ? static_cast<T*>(view.data) : nullptr;
}

}  // namespace

void count_targets(const LossCount& c, cudaStream_t stream) {
  count_kernel<<<1, single_block, 0, stream>>>({.targets = targets_of(c.targets, 0),
                                                .rows = c.targets.list.size(0),
                                                .scale = c.scale.given() ? static_cast<const float*>(c.scale.data) : nullptr,
                                                .divide = c.divide_by_count,
                                                .count = written<float>(c.count),
                                                .status = written<std::uint32_t>(c.status),
                                                .factor = c.factor});
}

void copy_counted_rows(const LossTargets& targets, std::int64_t first, const Matrix& from, const Matrix& to, cudaStream_t stream) {
  const GatherParams<CountedRow> p{.source = {targets_of(targets, first)},
                                   .from = {from.data, from.stride},
                                   .to = {to.data, to.stride},
                                   .rows = to.rows,
                                   .columns = to.columns};
  gather_rows(p, static_cast<std::int64_t>(size_of(to.dtype)), stream);
}

void loss_of_rows(const LossRows& rows, cudaStream_t stream) {
  if (rows.logits.rows == 0) return;
  const std::int64_t classes = rows.logits.columns;
  const RowsParams p{.targets = targets_of(rows.targets, rows.first),
                     .logits = static_cast<float*>(rows.logits.data),
                     .stride = rows.logits.stride,
                     .classes = classes,
                     .bias = rows.bias.data,
                     .bias_on_packs = reinterpret_cast<std::uintptr_t>(rows.bias.data) % (V * size_of(rows.dtype)) == 0,
                     .smoothing = rows.smoothing,
                     .factor = rows.factor,
                     .losses = rows.losses};
  int threads = 128;
  while (threads < most_row_threads && threads * 4 * V < classes) threads *= 2;
  visit_storage(rows.dtype, [&](auto element) {
    rows_kernel<Stored<decltype(element)>>
        <<<static_cast<unsigned>(rows.logits.rows), static_cast<unsigned>(threads), 0, stream>>>(p);
  });
}

Matrix gradients_of(const LossRows& rows) {
  Matrix out = rows.logits;
  out.dtype = rows.dtype;
  out.stride *= static_cast<std::int64_t>(sizeof(float) / size_of(rows.dtype));
  return out;
}

void sum_losses(const double* losses, std::int64_t rows, const TensorView& loss, cudaStream_t stream) {
  sum_kernel<<<1, single_block, 0, stream>>>(losses, rows, static_cast<float*>(loss.data));
}

}  // namespace everglow::cuda
