// Online softmax (Milakov & Gimelshein, arXiv 1805.02867): maximum and sum in one pass over memory. Each lane keeps its own maximum
// and sum over groups of vectors, so that the rescaling costs one exponential a group and lane, and lanes meet once a row.
#include "core/mutant.hpp"
#include "core/simd.hpp"

#include "cpu/isa/softmax_kernels.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr float infinity = __builtin_inff();
constexpr int group = 8;  // vectors that share one rescaling

/// Running maximum and sum of each lane.
struct Online {
  vfloat top = splat(-infinity), sum{};

  template <int N>
  void take(const vfloat (&x)[N]) {
    vfloat higher = top;
    for (int i = 0; i < N; ++i) higher = vmax(higher, x[i]);
    const vfloat shift = higher == -infinity ? vfloat{} : higher;  // nothing but -inf yet: exp(-inf - 0) is 0
    vfloat total = sum * vexp(top - shift);
    for (int i = 0; i < N; ++i) total += vexp(x[i] - shift);
    top = higher, sum = total;
  }
};

template <class T>
SoftmaxPart reduce(const T* x, std::int64_t n) {
  Online online;
  std::int64_t i = 0;
  for (; i + group * lanes <= n; i += group * lanes) {
    vfloat block[group];
    for (int v = 0; v < group; ++v) block[v] = load(x + i + v * lanes);
    online.take(block);
  }
  for (; i + lanes <= n; i += lanes) {
    const vfloat one[1] = {load(x + i)};
    online.take(one);
  }
  if (i < n) {
    const vfloat rest[1] = {load_part(x + i, static_cast<int>(n - i), -infinity)};
    online.take(rest);
  }
  const float top = max_lanes(online.top);
  const float shift = top == -infinity ? 0 : top;
  return {top, sum_lanes(online.sum * vexp(online.top - shift))};
}

template <bool Log, class T>
void quotients(const T* x, T* y, std::int64_t n, SoftmaxPart row) {
  const auto value = [row](vfloat a) { return Log ? a - row.top - row.sum : vexp(a - row.top) * row.sum; };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, value(load(x + i)));
  if (i < n) store_part(y + i, value(load_part(x + i, static_cast<int>(n - i))), static_cast<int>(n - i));
}
template <class T>
void quotient(const T* x, T* y, std::int64_t n, SoftmaxPart row, bool log) {
  if (log)
    quotients<true>(x, y, n, row);
  else
    quotients<false>(x, y, n, row);
}

template <class T>
void fill(T* y, std::int64_t n, float value) {
  const vfloat all = splat(value);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, all);
  if (i < n) store_part(y + i, all, static_cast<int>(n - i));
}

template <bool Log, class T>
float sum_of_gradient(const T* y, const T* dy, std::int64_t n) {
  vfloat even{}, odd{};
  const auto term = [](vfloat a, vfloat b) { return Log ? b : a * b; };
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even += term(load(y + i), load(dy + i));
    odd += term(load(y + i + lanes), load(dy + i + lanes));
  }
  for (; i + lanes <= n; i += lanes) even += term(load(y + i), load(dy + i));
  if (i < n)
    odd += dropped("softmax.sum_lacks_its_tail",
                   term(load_part(y + i, static_cast<int>(n - i)), load_part(dy + i, static_cast<int>(n - i))));
  return sum_lanes(even + odd);
}
template <class T>
float gradient_sum(const T* y, const T* dy, std::int64_t n, bool log) {
  return log ? sum_of_gradient<true>(y, dy, n) : sum_of_gradient<false>(y, dy, n);
}

template <bool Log, class T>
void gradients(const T* y, const T* dy, T* dx, std::int64_t n, float sum) {
  const auto value = [sum](vfloat a, vfloat b) {
    return Log ? b - dropped("softmax.log_gradient_lacks_a_term", vexp(a) * sum) : a * (b - flipped("softmax.gradient_sign", sum));
  };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(dx + i, value(load(y + i), load(dy + i)));
  if (i == n) return;
  const int left = static_cast<int>(n - i);
  store_part(dx + i, value(load_part(y + i, left), load_part(dy + i, left)), left);
}
template <class T>
void gradient(const T* y, const T* dy, T* dx, std::int64_t n, float sum, bool log) {
  if (log)
    gradients<true>(y, dy, dx, n, sum);
  else
    gradients<false>(y, dy, dx, n, sum);
}

template <class T>
constexpr SoftmaxPasses<T> passes{reduce<T>, quotient<T>, fill<T>, gradient_sum<T>, gradient<T>};

}  // namespace

extern const SoftmaxKernels softmax_kernels;
const SoftmaxKernels softmax_kernels{passes<float>, passes<Half>, passes<BFloat16>};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
