// Elementwise operations in f32: dimensions that lie behind one another in every operand are folded, then threads take parts of
// the logical order and call the loops of an instruction set on each contiguous stretch. Operands of 16 bits and those whose last
// dimension is strided are staged through small blocks on the stack.
#include "cpu/isa/pointwise.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/philox.hpp"
#include "core/storage.hpp"
#include "cpu/rows.hpp"

#include <algorithm>
#include <cstring>

namespace everglow::cpu {
namespace {

constexpr std::int64_t block = 1024;   // elements whose random words or staged copies stay in the first-level cache
constexpr std::int64_t grain = 16384;  // elements below which another thread costs more than it saves

const PointwiseKernels& kernels_of(const PointwiseQuery& q) {
  return select(q.isa, portable::pointwise_kernels, avx2::pointwise_kernels, avx512::pointwise_kernels);
}

enum Operand { operand_a, operand_b, operand_y, operands };

/// The shape after folding, and the strides of the three operands (0 where one is not given).
struct Loop {
  int rank = 0;
  std::int64_t shape[max_rank]{};
  std::int64_t strides[operands][max_rank]{};
};

Loop fold(const PointwiseRun& t) {
  const ConstTensorView views[operands] = {t.a, t.b, t.y};
  Loop loop;
  for (int d = 0; d < t.y.rank; ++d) {
    if (t.y.shape[d] == 1) continue;
    bool joins = loop.rank > 0;
    for (const auto& view : views)
      joins = joins && (!view.given() || loop.strides[&view - views][loop.rank - 1] == view.strides[d] * view.shape[d]);
    if (!joins) ++loop.rank, loop.shape[loop.rank - 1] = 1;
    loop.shape[loop.rank - 1] *= t.y.shape[d];
    for (const auto& view : views)
      if (view.given()) loop.strides[&view - views][loop.rank - 1] = view.strides[d];
  }
  if (loop.rank == 0) loop.rank = 1, loop.shape[0] = 1;
  return loop;
}

/// Elements some way apart side by side, and back.
template <class T, class U>
void gather(const void* from, std::int64_t stride, U* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<U>(static_cast<const T*>(from)[i * stride]);
}
template <class T>
void scatter(const T* from, void* to, std::int64_t stride, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) static_cast<T*>(to)[i * stride] = from[i];
}

class Runner {
 public:
  Runner(const PointwiseQuery& q, const PointwiseRun& t)
      : d_(q.description),
        t_(t),
        kernels_(kernels_of(q)),
        loop_(fold(t)),
        source_(t.a.given() ? t.a.dtype : DType::f32, q.isa),
        storage_(d_.dtype, q.isa) {
    const double p = d_.dropout;
    threshold_ = dropout_threshold(p);
    keep_scale_ = static_cast<float>(1 / (1 - dropped("pointwise.dropout_not_scaled", p)));
  }

  /// The elements [begin, end) of the logical order.
  void operator()(std::int64_t begin, std::int64_t end) const {
    const int last = loop_.rank - 1;
    while (begin < end) {
      std::int64_t offsets[operands] = {}, rest = begin;
      const std::int64_t inner = begin % loop_.shape[last];
      for (int dim = last; dim >= 0; --dim) {
        for (int o = 0; o < operands; ++o) offsets[o] += rest % loop_.shape[dim] * loop_.strides[o][dim];
        rest /= loop_.shape[dim];
      }
      const std::int64_t stretch = std::min(end - begin, loop_.shape[last] - inner);
      for (std::int64_t done = 0; done < stretch; done += block) {
        const std::int64_t n = std::min(block, stretch - done);
        std::int64_t at[operands];
        for (int o = 0; o < operands; ++o) at[o] = offsets[o] + done * loop_.strides[o][last];
        part(begin + done, n, at);
      }
      begin += stretch;
    }
  }

 private:
  /// n <= block elements from logical element i on, along the last dimension.
  void part(std::int64_t i, std::int64_t n, const std::int64_t (&at)[operands]) const {
    const std::int64_t stride_y = loop_.strides[operand_y][loop_.rank - 1];
    std::byte* const y = storage_.at(t_.y.data, at[operand_y]);
    if (copies_bits(stride_y)) {
      std::memcpy(y, source_.at(t_.a.data, at[operand_a]), static_cast<std::size_t>(n) * size_of(d_.dtype));
      return;
    }
    alignas(64) float staged[operands][block];
    const bool direct = stride_y == 1 && storage_.is_f32();
    const PointwiseOperands o{.a = source(t_.a, source_, operand_a, n, at, staged[operand_a]),
                              .b = source(t_.b, storage_, operand_b, n, at, staged[operand_b]),
                              .y = direct ? reinterpret_cast<float*>(y) : staged[operand_y],
                              .n = n};
    compute(o, i);
    if (!direct) finish(o.y, y, stride_y, n);
  }

  /// A copy of contiguous elements without another dtype is one of bytes, y in the place of a aside.
  bool copies_bits(std::int64_t stride_y) const {
    return d_.operation == Pointwise::copy && t_.a.dtype == d_.dtype && stride_y == 1 && t_.a.data != t_.y.data &&
           loop_.strides[operand_a][loop_.rank - 1] == 1;
  }

  /// n elements of an operand as f32: themselves, or a copy in `staged`.
  const float* source(const ConstTensorView& view, const Storage& storage, Operand operand, std::int64_t n,
                      const std::int64_t (&at)[operands], float* staged) const {
    if (!view.given()) return nullptr;
    const std::int64_t stride = loop_.strides[operand][loop_.rank - 1];
    if (view.dtype == DType::f64) {
      gather<double>(static_cast<const double*>(view.data) + at[operand], stride, staged, n);
      return staged;
    }
    const std::byte* const first = storage.at(view.data, at[operand]);
    if (stride == 1) return storage.floats(first, staged, n);
    if (storage.is_f32()) {
      gather<float>(first, stride, staged, n);
      return staged;
    }
    std::uint16_t bits[block];
    gather<std::uint16_t>(first, stride, bits, n);
    storage.widen(bits, staged, n);
    return staged;
  }

  /// Stores what was computed beside y.
  void finish(const float* values, std::byte* y, std::int64_t stride, std::int64_t n) const {
    if (stride == 1) return storage_.narrow(values, y, n);
    if (storage_.is_f32()) return scatter(values, y, stride, n);
    std::uint16_t bits[block];
    storage_.narrow(values, bits, n);
    scatter(bits, y, stride, n);
  }

  void compute(const PointwiseOperands& o, std::int64_t i) const {
    switch (d_.operation) {
      case Pointwise::copy:
        return copy_part(o.a, o);
      case Pointwise::add:
        return kernels_.add(o);
      case Pointwise::multiply:
        return kernels_.multiply(o);
      case Pointwise::scale:
        return kernels_.scale(o, d_.factor);
      case Pointwise::fill:
        return kernels_.fill(o, d_.factor);
      case Pointwise::dropout:
        return dropout_part(o, static_cast<std::uint64_t>(i));
      case Pointwise::activation:
        if (d_.activation == Activation::none) return copy_part(o.a, o);
        return kernels_.activation(o, activation_kernel());
      case Pointwise::activation_gradient:
        if (d_.activation == Activation::none) return copy_part(o.b, o);
        return kernels_.activation_gradient(o, activation_kernel());
    }
  }

  static void copy_part(const float* from, const PointwiseOperands& o) {
    if (from != o.y) std::memcpy(o.y, from, static_cast<std::size_t>(o.n) * sizeof(float));
  }

  ActivationKernel activation_kernel() const {
    static_assert(static_cast<int>(Activation::silu) == static_cast<int>(ActivationKernel::silu) + 1,
                  "the same order after `none`");
    return static_cast<ActivationKernel>(static_cast<int>(d_.activation) - 1);
  }

  void dropout_part(const PointwiseOperands& o, std::uint64_t i) const {
    if (threshold_ == 0) return o.b == nullptr ? copy_part(o.a, o) : kernels_.add(o);
    if (threshold_ > 0xFFFFFFFFU) return o.b == nullptr ? kernels_.fill(o, 0) : copy_part(o.b, o);
    constexpr std::int64_t counters = (block / 4 + philox_batch) / philox_batch * philox_batch;
    std::uint32_t words[counters * 4];
    const auto skip = static_cast<std::int64_t>(i % 4);
    const std::int64_t wanted = (skip + o.n + 3) / 4;
    kernels_.philox(t_.dropout_seed, t_.dropout_offset + i / 4, (wanted + philox_batch - 1) / philox_batch * philox_batch, words);
    kernels_.dropout(o, words + skip, static_cast<std::uint32_t>(threshold_), keep_scale_);
  }

  const PointwiseDescription& d_;
  const PointwiseRun& t_;
  const PointwiseKernels& kernels_;
  Loop loop_;
  Storage source_, storage_;  // of a and of the others
  std::uint64_t threshold_ = 0;
  float keep_scale_ = 1;
};

Verdict accepts(const PointwiseQuery& q) { return accept_storage(q.description.dtype); }

void run(const PointwiseQuery& q, const PointwiseRun& t, void*, const Stream&) {
  if (t.y.elements() == 0) return;
  parallel_ranges(q.threads, t.y.elements(), grain, Runner(q, t));
}

}  // namespace

const PointwiseRow pointwise{.name = "cpu.pointwise", .accepts = accepts, .footprint = no_footprint<PointwiseQuery>, .run = run};

}  // namespace everglow::cpu
