// Adam on a card: the norm of all gradients in double over fixed blocks, the scalars of the step by one block, and one fused
// update. Pointers travel in the launches' parameters, some tensors at a time, so that a step needs no table in the card's memory.
#include "cuda/common/device.hpp"
#include "cuda/common/row_blocks.cuh"
#include "cuda/common/rows.hpp"

#include "core/arena.hpp"
#include "core/loss_scaler.hpp"

#include <cmath>

namespace everglow::cuda {
namespace {

constexpr std::string_view where = "adam.step";
constexpr int threads = 256, V = 4, packs_a_thread = 4;
constexpr std::int64_t block = std::int64_t{threads} * V * packs_a_thread;  // elements
constexpr int tensors_a_launch = 60;

/// What the second kernel tells the third.
struct StepFactors {
  float gradient, rate, root, decay;
  int skip;
};

struct Scratch {
  double* sums = nullptr;  // [blocks], of squares of the gradients as they come
  StepFactors* factors = nullptr;
};

Scratch scratch_of(const AdamQuery& query, Arena& arena) {
  Scratch s;
  s.sums = arena.take<double>(query.sizes.parameters / block + query.sizes.tensors);
  s.factors = arena.take<StepFactors>(1);
  return s;
}

struct TensorsParams {
  std::int64_t starts[tensors_a_launch + 1];  // number of the first block of each tensor, within the launch
  std::int64_t elements[tensors_a_launch];
  float* parameter[tensors_a_launch];
  const void* gradient[tensors_a_launch];
  float* m[tensors_a_launch];
  float* v[tensors_a_launch];
  void* copy[tensors_a_launch];  // null: none
  DType gradient_type[tensors_a_launch], copy_type[tensors_a_launch];
  bool whole[tensors_a_launch];  // packs may be loaded and stored
  int count;
  double* sums;
  const StepFactors* factors;
  float keep1, take1, keep2, take2, epsilon;
};
static_assert(sizeof(TensorsParams) <= 4096, "what every driver passes to a kernel");

/// The part of a tensor that a block has.
struct Part {
  int tensor;
  std::int64_t begin;
};
__device__ Part part_of_block(const TensorsParams& p) {
  int low = 0, high = p.count;  // starts[low] <= blockIdx.x < starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (p.starts[middle] <= blockIdx.x)
      low = middle;
    else
      high = middle;
  }
  return {low, (blockIdx.x - p.starts[low]) * block};
}

/// V elements from i on, or those that are there; zeros for the others.
template <class T>
__device__ void load(const T* from, std::int64_t i, std::int64_t n, bool whole, float (&to)[V]) {
  if (whole && i + V <= n) {
    const Pack<T, V> values = load_pack<T, V>({from, 0}, 0, i, n);
#pragma unroll
    for (int k = 0; k < V; ++k) to[k] = values.value(k);
    return;
  }
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = i + k < n ? widen(from[i + k]) : 0;
}

template <class T>
__device__ void store(T* to, std::int64_t i, std::int64_t n, bool whole, const float (&from)[V]) {
  if (whole && i + V <= n) return store_pack<T, V>({to, 0}, 0, i, n, Pack<T, V>::of(from));
#pragma unroll
  for (int k = 0; k < V; ++k)
    if (i + k < n) to[i + k] = narrow<T>(from[k]);
}

__device__ void load_gradient(const TensorsParams& p, int tensor, std::int64_t i, float (&to)[V]) {
  const void* const from = p.gradient[tensor];
  const std::int64_t n = p.elements[tensor];
  const bool whole = p.whole[tensor];
  if (p.gradient_type[tensor] == DType::f32) return load(static_cast<const float*>(from), i, n, whole, to);
  if (p.gradient_type[tensor] == DType::f16) return load(static_cast<const __half*>(from), i, n, whole, to);
  load(static_cast<const __nv_bfloat16*>(from), i, n, whole, to);
}

__global__ void __launch_bounds__(threads) squares_kernel(const __grid_constant__ TensorsParams p) {
  const Part part = part_of_block(p);
  float gradient[packs_a_thread][V];
#pragma unroll
  for (int k = 0; k < packs_a_thread; ++k) load_gradient(p, part.tensor, part.begin + (k * threads + threadIdx.x) * V, gradient[k]);
  double sum = 0;
#pragma unroll
  for (int k = 0; k < packs_a_thread; ++k)
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const double value = gradient[k][i];
      sum += value * value;  // a product of two f32 is exact in double
    }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = sum;
}

struct ScalarsParams {
  const double* sums;  // null: no norm is wanted
  std::int64_t blocks;
  std::int64_t* step;
  const float* rate;  // [rates]
  std::int64_t rates;
  const float* scale;      // null: 1
  float* scaler;           // null: the scale stays
  std::int64_t interval;   // of the scaler
  float* norm;             // null: not written
  std::int32_t* overflow;  // null: not checked
  StepFactors* factors;
  double beta1, beta2, weight_decay, clip;
};

constexpr int scalar_threads = 1024;

/// One block: everything about the step that is one number.
__global__ void __launch_bounds__(scalar_threads) scalars_kernel(const __grid_constant__ ScalarsParams p) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < p.blocks && p.sums != nullptr; i += scalar_threads) sum += p.sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x != 0) return;
  const float* const scale = p.scaler != nullptr ? p.scaler : p.scale;
  double gradient = 1 / (scale != nullptr ? static_cast<double>(*scale) : 1.0);
  const std::int64_t entry = p.scaler != nullptr ? rate_entry(p.scaler[2], p.rates) : 0;
  if (p.sums != nullptr) {
    const double norm = sqrt(sum) * fabs(gradient);
    const bool overflow = p.overflow != nullptr && !isfinite(norm);
    if (p.norm != nullptr) *p.norm = static_cast<float>(norm);
    if (p.overflow != nullptr) *p.overflow = overflow ? 1 : 0;
    p.factors->skip = overflow ? 1 : 0;
    if (p.scaler != nullptr) {
      const LossScaler next = after_step({p.scaler[0], p.scaler[1], p.scaler[2]}, overflow, p.interval);
      p.scaler[0] = next.scale, p.scaler[1] = next.good, p.scaler[2] = next.skipped;
    }
    if (overflow) return;
    if (p.clip > 0 && norm > p.clip) gradient *= p.clip / norm;
  }
  const std::int64_t steps = ++*p.step;
  const double rate = p.rate[entry], t = static_cast<double>(steps);
  *p.factors = {.gradient = static_cast<float>(gradient),
                .rate = static_cast<float>(rate / (1 - pow(p.beta1, t))),
                .root = static_cast<float>(1 / sqrt(1 - pow(p.beta2, t))),
                .decay = static_cast<float>(rate * p.weight_decay),
                .skip = 0};
}

__global__ void __launch_bounds__(threads) update_kernel(const __grid_constant__ TensorsParams p) {
  const StepFactors f = *p.factors;
  if (f.skip != 0) return;
  const Part part = part_of_block(p);
  const int tensor = part.tensor;
  const std::int64_t n = p.elements[tensor];
  const bool whole = p.whole[tensor];
  float parameter[packs_a_thread][V], gradient[packs_a_thread][V], m[packs_a_thread][V], v[packs_a_thread][V];
#pragma unroll
  for (int k = 0; k < packs_a_thread; ++k) {  // all loads before the first store
    const std::int64_t at = part.begin + (k * threads + threadIdx.x) * V;
    load_gradient(p, tensor, at, gradient[k]);
    load(p.parameter[tensor], at, n, whole, parameter[k]);
    load(p.m[tensor], at, n, whole, m[k]);
    load(p.v[tensor], at, n, whole, v[k]);
  }
#pragma unroll
  for (int k = 0; k < packs_a_thread; ++k) {
    const std::int64_t at = part.begin + (k * threads + threadIdx.x) * V;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = gradient[k][i] * f.gradient;
      m[k][i] = p.keep1 * m[k][i] + p.take1 * g;
      v[k][i] = p.keep2 * v[k][i] + p.take2 * (g * g);
      parameter[k][i] -= f.rate * m[k][i] / (sqrtf(v[k][i]) * f.root + p.epsilon) + f.decay * parameter[k][i];
    }
    store(p.m[tensor], at, n, whole, m[k]);
    store(p.v[tensor], at, n, whole, v[k]);
    store(p.parameter[tensor], at, n, whole, parameter[k]);
    if (p.copy[tensor] == nullptr) continue;
    if (p.copy_type[tensor] == DType::f16)
      store(static_cast<__half*>(p.copy[tensor]), at, n, whole, parameter[k]);
    else
      store(static_cast<__nv_bfloat16*>(p.copy[tensor]), at, n, whole, parameter[k]);
  }
}

bool on_packs(const ConstTensorView& view) {
  return !view.given() || reinterpret_cast<std::uintptr_t>(view.data) % (V * size_of(view.dtype)) == 0;
}

void append(TensorsParams& p, const AdamTensor& a) {
  const int at = p.count++;
  p.elements[at] = a.parameter.elements();
  p.starts[at + 1] = p.starts[at] + (p.elements[at] + block - 1) / block;
  p.parameter[at] = static_cast<float*>(a.parameter.data);
  p.gradient[at] = a.gradient.data;
  p.m[at] = static_cast<float*>(a.m.data);
  p.v[at] = static_cast<float*>(a.v.data);
  p.copy[at] = a.copy.data;
  p.gradient_type[at] = a.gradient.dtype, p.copy_type[at] = a.copy.dtype;
  p.whole[at] = on_packs(a.parameter) && on_packs(a.gradient) && on_packs(a.m) && on_packs(a.v) && on_packs(a.copy);
}

/// Calls launch(params, blocks) for all tensors that have elements, some at a time; returns the blocks of all.
template <class Launch>
std::int64_t for_tensors(std::span<const AdamTensor> tensors, TensorsParams p, const Launch& launch) {
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (p.count == 0) return;
    launch(p, static_cast<unsigned>(p.starts[p.count]));
    blocks += p.starts[p.count];
    p.sums += p.starts[p.count];
    p.count = 0;
  };
  for (const AdamTensor& tensor : tensors) {
    if (tensor.parameter.elements() == 0) continue;
    append(p, tensor);
    if (p.count == tensors_a_launch) flush();
  }
  flush();
  return blocks;
}

template <class T>
T* pointer_of(const TensorView& view) {
  return view.given() ? static_cast<T*>(view.data) : nullptr;
}
const float* pointer_of(const ConstTensorView& view) { return view.given() ? static_cast<const float*>(view.data) : nullptr; }

void step(const AdamQuery& query, const AdamStep& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  const cudaStream_t on = stream_of(stream);
  const AdamDescription& d = query.description;
  Arena arena(workspace);
  const Scratch s = scratch_of(query, arena);
  TensorsParams params{};
  params.sums = s.sums, params.factors = s.factors;
  params.keep1 = d.beta1, params.take1 = static_cast<float>(1 - static_cast<double>(d.beta1));
  params.keep2 = d.beta2, params.take2 = static_cast<float>(1 - static_cast<double>(d.beta2));
  params.epsilon = d.epsilon;
  const bool norm = d.clip > 0 || t.norm.given() || t.overflow.given();
  std::int64_t blocks = 0;
  if (norm)
    blocks = for_tensors(t.tensors, params,
                         [&](const TensorsParams& p, unsigned count) { squares_kernel<<<count, threads, 0, on>>>(p); });
  scalars_kernel<<<1, scalar_threads, 0, on>>>({.sums = norm ? s.sums : nullptr,
                                                .blocks = blocks,
                                                .step = pointer_of<std::int64_t>(t.step),
                                                .rate = pointer_of(t.rate),
                                                .rates = t.rate.elements(),
                                                .scale = pointer_of(t.scale),
                                                .scaler = pointer_of<float>(t.scaler),
                                                .interval = d.scale_interval,
                                                .norm = pointer_of<float>(t.norm),
                                                .overflow = pointer_of<std::int32_t>(t.overflow),
                                                .factors = s.factors,
                                                .beta1 = d.beta1,
                                                .beta2 = d.beta2,
                                                .weight_decay = d.weight_decay,
                                                .clip = d.clip});
  for_tensors(t.tensors, params, [&](const TensorsParams& p, unsigned count) { update_kernel<<<count, threads, 0, on>>>(p); });
  check_launch(where);
}

}  // namespace

const AdamRow adam{.name = "cuda.adam",
                   .accepts = [](const AdamQuery& query) { return accept_device(query.device); },
                   .footprint = arena_footprint<scratch_of, AdamQuery>,
                   .step = step};

}  // namespace everglow::cuda
