// Elementwise operations of f32, f16 and bf16 on a card. Views that are two dimensions of any strides, which is all that layers
// make, go through elementwise.cuh; any others count their offsets element by element.
#include "core/philox.hpp"
#include "core/visit.hpp"
#include "cuda/common/activation.cuh"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/matrix.hpp"
#include "cuda/common/rows.hpp"

namespace everglow::cuda {
namespace {

struct Multiplied {
  static constexpr bool reads_a = true, reads_b = true;
  __device__ float operator()(float a, float b, std::int64_t) const { return a * b; }
};
struct Scaled {
  static constexpr bool reads_a = true, reads_b = false;
  float factor;
  __device__ float operator()(float a, float, std::int64_t) const { return factor * a; }
};
struct Filled {
  static constexpr bool reads_a = false, reads_b = false;
  float value;
  __device__ float operator()(float, float, std::int64_t) const { return value; }
};
/// Seed and offset come with the call or, where a state is given, from the card's memory.
struct DroppedOut {
  static constexpr bool reads_a = true, reads_b = false;
  std::uint64_t seed, offset, threshold;
  float scale;
  const std::int64_t* state;
  std::int64_t state_stride;
  /// One counter serves four elements, which a pack holds whole where it begins at the first of them.
  template <int V>
  __device__ void all(const float (&a)[V], const float (&)[V], float (&y)[V], std::int64_t index) const {
    if (V % 4 != 0 || index % 4 != 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) y[v] = (*this)(a[v], 0, index + v);
      return;
    }
    const std::uint64_t key = state != nullptr ? static_cast<std::uint64_t>(state[0]) : seed;
    const std::uint64_t begin = state != nullptr ? static_cast<std::uint64_t>(state[state_stride]) : offset;
#pragma unroll
    for (int four = 0; four < V / 4; ++four) {
      const std::array<std::uint32_t, 4> words = philox(key, begin + static_cast<std::uint64_t>(index / 4 + four));
#pragma unroll
      for (int v = 0; v < 4; ++v) y[4 * four + v] = words[v] >= threshold ? a[4 * four + v] * scale : 0;
    }
  }
  __device__ float operator()(float a, float, std::int64_t index) const {
    const std::uint64_t key = state != nullptr ? static_cast<std::uint64_t>(state[0]) : seed;
    const std::uint64_t first = state != nullptr ? static_cast<std::uint64_t>(state[state_stride]) : offset;
    return dropout_keeps(key, first, static_cast<std::uint64_t>(index), threshold) ? a * scale : 0;
  }
};
struct DroppedOutAndAdded {
  static constexpr bool reads_a = true, reads_b = true;
  DroppedOut drop;
  template <int V>
  __device__ void all(const float (&a)[V], const float (&b)[V], float (&y)[V], std::int64_t index) const {
    drop.all(a, b, y, index);
#pragma unroll
    for (int v = 0; v < V; ++v) y[v] += b[v];
  }
  __device__ float operator()(float a, float b, std::int64_t index) const { return drop(a, 0, index) + b; }
};

struct AnyActivated {
  static constexpr bool reads_a = true, reads_b = false;
  Activation activation;
  __device__ float operator()(float a, float, std::int64_t) const { return activate(activation, a); }
};
struct AnyActivationGradient {
  static constexpr bool reads_a = true, reads_b = true;
  Activation activation;
  __device__ float operator()(float a, float b, std::int64_t) const { return b * activation_slope(activation, a); }
};

/// Views with more dimensions than two, none of which join.
template <class F>
struct AnyRankParams {
  const void* a;
  const void* b;
  void* y;
  int rank;
  std::int64_t elements;
  std::int64_t shape[max_rank], a_strides[max_rank], b_strides[max_rank], y_strides[max_rank];
  F f;
};

template <class A, class T, class F>
__global__ void __launch_bounds__(elementwise_threads) any_rank_kernel(const __grid_constant__ AnyRankParams<F> p) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * elementwise_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * elementwise_threads + threadIdx.x; i < p.elements; i += step) {
    std::int64_t rest = i, a = 0, b = 0, y = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
      const std::int64_t at = rest % p.shape[d];
      rest /= p.shape[d];
      a += at * p.a_strides[d], b += at * p.b_strides[d], y += at * p.y_strides[d];
    }
    float left = 0, right = 0;
    if constexpr (F::reads_a) left = widen(static_cast<const A*>(p.a)[a]);
    if constexpr (F::reads_b) right = widen(static_cast<const T*>(p.b)[b]);
    static_cast<T*>(p.y)[y] = narrow<T>(p.f(left, right, i));
  }
}

/// The dimensions of a run without those of size 1, and with those joined that are one in every view.
template <class F>
AnyRankParams<F> joined(const PointwiseRun& t, const F& f) {
  AnyRankParams<F> p{.a = t.a.data,
                     .b = t.b.data,
                     .y = t.y.data,
                     .rank = 0,
                     .elements = t.y.elements(),
                     .shape = {},
                     .a_strides = {},
                     .b_strides = {},
                     .y_strides = {},
                     .f = f};
  const auto stride = [](const auto& view, int d) { return view.given() ? view.strides[d] : 0; };
  for (int d = 0; d < t.y.rank; ++d) {
    const std::int64_t n = t.y.shape[d], a = stride(t.a, d), b = stride(t.b, d), y = stride(t.y, d);
    if (n == 1) continue;
    const int last = p.rank - 1;
    const bool one = last >= 0 && p.a_strides[last] == n * a && p.b_strides[last] == n * b && p.y_strides[last] == n * y;
    const int at = one ? last : p.rank++;
    p.shape[at] = one ? p.shape[at] * n : n;
    p.a_strides[at] = a, p.b_strides[at] = b, p.y_strides[at] = y;
  }
  return p;
}

template <class A, class T, class F>
void launch_any_rank(const AnyRankParams<F>& p, cudaStream_t stream) {
  constexpr std::int64_t most_blocks = 1 << 20;
  const std::int64_t blocks = (p.elements + elementwise_threads - 1) / elementwise_threads;
  any_rank_kernel<A, T><<<static_cast<unsigned>(std::min(blocks, most_blocks)), elementwise_threads, 0, stream>>>(p);
  check_launch("pointwise.run");
}

template <class A, class T, class F>
void launch(const PointwiseRun& t, const F& f, cudaStream_t stream) {
  const AnyRankParams<F> p = joined(t, f);
  if (p.rank > 2) return launch_any_rank<A, T>(p, stream);
  const int column = p.rank - 1, row = p.rank - 2;
  const auto plane = [&](const void* data, const std::int64_t* strides) {
    return Plane{data, row >= 0 ? strides[row] : 0, column >= 0 ? strides[column] : 1};
  };
  launch_elementwise<A, T>(ElementwiseParams<F>{.a = plane(p.a, p.a_strides),
                                                .b = plane(p.b, p.b_strides),
                                                .y = plane(p.y, p.y_strides),
                                                .rows = row >= 0 ? p.shape[row] : 1,
                                                .columns = column >= 0 ? p.shape[column] : 1,
                                                .f = f},
                           stream);
}

/// The activations of two dimensions are those of the linear rows.
template <class T, class F>
void launch_activation(const PointwiseDescription& d, const PointwiseRun& t, const F& f, cudaStream_t stream) {
  const AnyRankParams<F> p = joined(t, f);
  if (p.rank > 2) return launch_any_rank<T, T>(p, stream);
  const int column = p.rank - 1, row = p.rank - 2;
  const auto matrix = [&](const void* data, const std::int64_t* strides) {
    return Matrix{const_cast<void*>(data),     row >= 0 ? p.shape[row] : 1,       column >= 0 ? p.shape[column] : 1,
                  row >= 0 ? strides[row] : 0, column >= 0 ? strides[column] : 1, d.dtype};
  };
  const Matrix a = matrix(p.a, p.a_strides), b = matrix(p.b, p.b_strides), y = matrix(p.y, p.y_strides);
  if (d.operation == Pointwise::activation) return activate_matrix(a, y, d.activation, stream);
  activation_gradient(a, b, y, d.activation, stream);
}

template <class T>
void launch_copy(const PointwiseRun& t, cudaStream_t stream) {
  if (t.a.dtype == DType::f64) return launch<double, T>(t, Identity{}, stream);
  visit_storage(t.a.dtype, [&](auto source) { launch<Stored<decltype(source)>, T>(t, Identity{}, stream); });
}

template <class T>
void launch_dropout(const PointwiseDescription& d, const PointwiseRun& t, cudaStream_t stream) {
  const double kept = 1 - static_cast<double>(d.dropout);
  const DroppedOut drop{.seed = t.dropout_seed,
                        .offset = t.dropout_offset,
                        .threshold = dropout_threshold(d.dropout),
                        .scale = kept > 0 ? static_cast<float>(1 / kept) : 0,
                        .state = static_cast<const std::int64_t*>(t.dropout_state.data),
                        .state_stride = t.dropout_state.given() ? t.dropout_state.strides[0] : 0};
  if (t.b.given())
    launch<T, T>(t, DroppedOutAndAdded{drop}, stream);
  else
    launch<T, T>(t, drop, stream);
}

template <class T>
void launch_operation(const PointwiseDescription& d, const PointwiseRun& t, cudaStream_t stream) {
  switch (d.operation) {
    case Pointwise::copy:
      return launch_copy<T>(t, stream);
    case Pointwise::add:
      return launch<T, T>(t, Sum{}, stream);
    case Pointwise::multiply:
      return launch<T, T>(t, Multiplied{}, stream);
    case Pointwise::scale:
      return launch<T, T>(t, Scaled{d.factor}, stream);
    case Pointwise::fill:
      return launch<T, T>(t, Filled{d.factor}, stream);
    case Pointwise::dropout:
      return launch_dropout<T>(d, t, stream);
    case Pointwise::activation:
      return launch_activation<T>(d, t, AnyActivated{d.activation}, stream);
    case Pointwise::activation_gradient:
      return launch_activation<T>(d, t, AnyActivationGradient{d.activation}, stream);
  }
}

void run(const PointwiseQuery& query, const PointwiseRun& t, void*, const Stream& stream) {
  if (t.y.elements() == 0) return;
  const CurrentCard current(query.device.device.index);
  visit_storage(query.description.dtype,
                [&](auto element) { launch_operation<Stored<decltype(element)>>(query.description, t, stream_of(stream)); });
}

}  // namespace

const PointwiseRow pointwise{.name = "cuda.pointwise",
                             .accepts = accept_storage_on_card<PointwiseQuery>,
                             .footprint = no_footprint<PointwiseQuery>,
                             .run = run};

}  // namespace everglow::cuda
