// Softmax of rows that fit on chip: a row lies in the registers of a block, or of a cluster of blocks, while the next one is on its
// way into shared memory, so that memory never waits for arithmetic. The packs of a warp lie side by side, and a thread reads from
// shared memory only what it copied there itself, so that nothing but the sums of a row crosses threads.
#pragma once

#include "cuda/common/softmax_meeting.cuh"
#include "cuda/ptx/copy.cuh"

namespace everglow::cuda {

constexpr int most_row_threads = 1024;

/// Packs of a row that a thread has in registers, 64 of which serve 1024 threads of a multiprocessor. Those of two bytes, which
/// cannot be copied while others work, fill a register each.
constexpr int held_packs(int pack_bytes, int tensors) { return (pack_bytes == 2 ? 64 : 128) / pack_bytes / tensors; }

/// A thread's share of the rows that its block makes: packs that pass through registers, and `p.resident` more that stay in shared
/// memory. `whole`: each of them lies in the row with all of its elements, as nearly every thread's do.
template <class T, int V, bool backward>
class RowShare {
  using Elements = Pack<T, V>;
  static constexpr int pack_bytes = V * static_cast<int>(sizeof(T)), packs = held_packs(pack_bytes, backward ? 2 : 1);
  static constexpr bool ahead = pack_bytes > 2;
  /// A pack by words: where it is kept by elements the compiler gives each of 16 bits a register.
  struct Bits {
    std::uint32_t words[ahead ? pack_bytes / 4 : 1];
    __device__ __forceinline__ Elements elements() const {
      Elements out;
      memcpy(&out, words, sizeof out);
      return out;
    }
    __device__ __forceinline__ void set(const Elements& from) { memcpy(words, &from, sizeof from); }
  };

 public:
  __device__ RowShare(const SoftmaxParams& p, unsigned char* memory) : p_(p), memory_(memory) {
    const int each = packs + p.resident, lane = static_cast<int>(threadIdx.x) % 32;
    first_ = static_cast<int>(threadIdx.x) / 32 * each * 32 + lane;
    const int begin = static_cast<int>(Cluster::rank() * p.segment);
    column_ = begin + first_ * V;
    left_ = static_cast<int>(min(begin + p.segment, p.columns)) - column_;
    whole_ = __all_sync(0xffffffffU, left_ >= ((each - 1) * 32 + 1) * V) != 0;
  }

  /// The first row of this block, on its way.
  __device__ __forceinline__ void begin(int row) const {
    const Rows from = rows_at(row);
#pragma unroll
    for (int i = 0; i < packs; ++i) fetch<false>(from, i), ptx::commit_copies();
#pragma unroll 1
    for (int i = packs; i < packs + p_.resident; ++i) fetch<false>(from, i);
    ptx::commit_copies();
  }
  /// Takes row `row` into registers and sends for the packs of row `next` in their place.
  __device__ __forceinline__ SoftmaxPart take(int row, int next) {
    return whole_ ? take_packs<true>(row, next) : take_packs<false>(row, next);
  }
  /// Stores the results of row `row`, of which `whole` is known, and sends for the resident packs of row `next`.
  __device__ __forceinline__ void finish(int row, int next, const SoftmaxPart& whole) {
    whole_ ? store_packs<true>(row, next, whole) : store_packs<false>(row, next, whole);
  }

 private:
  /// Where this thread's first pack lies in a row; whether there is such a row.
  struct Rows {
    const T *x, *d;
    bool there;
  };
  __device__ __forceinline__ const T* at(const Plane& plane, std::int64_t row) const {
    return static_cast<const T*>(plane.data) + row * plane.stride + column_;
  }
  __device__ __forceinline__ Rows rows_at(int row) const {
    return {at(p_.x, row), backward ? at(p_.d, row) : nullptr, row < p_.rows};
  }

  template <bool whole>
  __device__ __forceinline__ SoftmaxPart take_packs(int row, int next) {
    SoftmaxPart part{negative_infinity(), 0};
    const Rows from = rows_at(row), then = rows_at(next);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      ptx::wait_for_copies<packs>();  // those of the resident packs and packs - 1 others are younger
      x_[i].set(pack<whole>(from.x, 0, i));
      if constexpr (backward) d_[i].set(pack<whole>(from.d, 1, i));
      fetch<whole>(then, i), ptx::commit_copies();
    }
    ptx::wait_for_copies<packs>();
    forget<whole>();
    if constexpr (backward) {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.sum = pack_products(part.sum, x_[i].elements(), d_[i].elements(), p_.log);
#pragma unroll 1
      for (int i = packs; i < packs + p_.resident; ++i)
        part.sum = pack_products(part.sum, pack<whole>(from.x, 0, i), pack<whole>(from.d, 1, i), p_.log);
    } else {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.top = pack_max(part.top, x_[i].elements());
#pragma unroll 1
      for (int i = packs; i < packs + p_.resident; ++i) part.top = pack_max(part.top, pack<whole>(from.x, 0, i));
      part.top = join_max(part.top);
      top_ = part.top;
      const float below_top = below(part.top);
      forget<whole>();
      part.sum = sum_held(below_top);
#pragma unroll 1
      for (int i = packs; i < packs + p_.resident; ++i) part.sum = pack_sum(part.sum, pack<whole>(from.x, 0, i), below_top);
    }
    part.sum = join_sum(part.sum);
    return part;
  }

  template <bool whole>
  __device__ __forceinline__ void store_packs(int row, int next, const SoftmaxPart& sums) {
    const Rows from = rows_at(row), then = rows_at(next);
    T* const to = const_cast<T*>(at(p_.to, row));
    forget<whole>();
    const Normaliser normal(sums, p_);
#pragma unroll 1
    for (int i = packs; i < packs + p_.resident; ++i) {
      const Elements x = pack<whole>(from.x, 0, i);
      Elements result;
      if constexpr (backward)
        result = gradients(x, pack<whole>(from.d, 1, i), sums.sum, p_.log);
      else
        result = normal.results(x);
      fetch<whole>(then, i), store<whole>(to, i, result);
    }
    ptx::commit_copies();
    if constexpr (backward) {
      if (p_.log)
        store_gradients<whole, true>(to, sums.sum);
      else
        store_gradients<whole, false>(to, sums.sum);
    } else {
      store_held<whole>(to, normal);
    }
  }

  template <bool whole, bool log>
  __device__ __forceinline__ void store_gradients(T* to, float sum) const {
#pragma unroll
    for (int i = 0; i < packs; ++i) store<whole>(to, i, gradients(x_[i].elements(), d_[i].elements(), sum, log));
  }
  __device__ __forceinline__ float sum_held(float from) {
    float sum = 0;
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
#pragma unroll
        for (int i = 0; i < packs; ++i) {
          Elements x = x_[i].elements();
          sum = pack_exponentials(sum, x, from), x_[i].set(x);
        }
        return sum;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) sum = pack_sum(sum, x_[i].elements(), from);
    return sum;
  }
  template <bool whole>
  __device__ __forceinline__ void store_held(T* to, const Normaliser& normal) const {
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
        const float factor = exponential<T>(top_ - normal.from) * normal.scale;
#pragma unroll
        for (int i = 0; i < packs; ++i) store<whole>(to, i, scaled(x_[i].elements(), factor));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) store<whole>(to, i, normal.results(x_[i].elements()));
  }

  /// Keeps the compiler from holding in registers what it can make anew: which elements of each pack lie in the row, and 16-bit
  /// elements as f32.
  template <bool whole>
  __device__ __forceinline__ void forget() {
    if constexpr (!whole) asm volatile("" : "+r"(left_));
    if constexpr (ahead && (sizeof(T) == 2 || backward)) {
      for (Bits& pack : x_)
        for (std::uint32_t& word : pack.words) asm volatile("" : "+r"(word));
      if constexpr (backward)
        for (Bits& pack : d_)
          for (std::uint32_t& word : pack.words) asm volatile("" : "+r"(word));
    }
  }

  /// Elements of the row from pack i on.
  __device__ __forceinline__ int elements(int i) const { return left_ - i * 32 * V; }
  __device__ __forceinline__ unsigned char* slot_of(int tensor, int i) const {
    const int before = tensor == 0 ? 0 : static_cast<int>(blockDim.x) * (packs + p_.resident);
    return memory_ + (before + first_) * pack_bytes + i * 32 * pack_bytes;
  }

  template <bool whole>
  __device__ __forceinline__ void fetch(const Rows& from, int i) const {
    if constexpr (ahead) {
      fetch<whole>(from.x, 0, i, from.there);
      if constexpr (backward) fetch<whole>(from.d, 1, i, from.there);
    }
  }
  template <bool whole>
  __device__ __forceinline__ void fetch(const T* from, int tensor, int i, bool there) const {
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(slot_of(tensor, i)));
    if (whole) {
      if (there) ptx::copy_async<pack_bytes>(to, from + i * 32 * V);
    } else {
      const int count = there ? min(max(elements(i), 0), V) : 0;
      const void* const base = tensor == 0 ? p_.x.data : p_.d.data;
      ptx::copy_async<pack_bytes>(to, count > 0 ? from + i * 32 * V : base, count * static_cast<int>(sizeof(T)));
    }
  }

  /// What has come of a pack; past the end of the row -inf forward, 0 backward.
  template <bool whole>
  __device__ __forceinline__ Elements pack(const T* from, int tensor, int i) const {
    Elements out;
    if constexpr (ahead) {
      std::uint32_t words[sizeof out / 4];
      const auto slot = *reinterpret_cast<const Words<sizeof out>*>(slot_of(tensor, i));
      memcpy(words, &slot, sizeof out);
      if constexpr (!backward && !whole) fill(words, elements(i));
      memcpy(&out, words, sizeof out);
    } else {
      out.at[0] = whole || elements(i) > 0 ? from[i * 32] : narrow<T>(backward ? 0 : negative_infinity());
    }
    return out;
  }
  /// By words: where single elements are replaced the compiler gives each of them a register.
  template <int N>
  static __device__ __forceinline__ void fill(std::uint32_t (&words)[N], int count) {
    constexpr int each = 4 / static_cast<int>(sizeof(T));
    constexpr std::uint32_t half = std::is_same_v<T, __half> ? 0xfc00U : 0xff80U;
    constexpr std::uint32_t filler = each == 1 ? 0xff800000U : half << 16 | half;
    if (count >= N * each) return;
#pragma unroll
    for (int w = 0; w < N; ++w)
      if (count < (w + 1) * each) words[w] = count <= w * each ? filler : (words[w] & 0xffffU) | (filler & 0xffff0000U);
  }

  template <bool whole>
  __device__ __forceinline__ void store(T* to, int i, const Elements& pack) const {
    if (whole || elements(i) >= V) {
      if constexpr (V > 1) {
        Words<sizeof pack> words;
        memcpy(&words, &pack, sizeof words);
        __stwb(reinterpret_cast<Words<sizeof pack>*>(to + i * 32 * V), words);
      } else {
        to[i * 32] = pack.at[0];
      }
    } else if (V > 1) {
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < elements(i)) to[i * 32 * V + v] = pack.at[v];
    }
  }

  const SoftmaxParams& p_;
  Bits x_[packs], d_[backward ? packs : 1];
  unsigned char* memory_;
  int first_;      // of this thread's packs in the block's segment; the next ones are 32 apart
  int column_;     // where it begins
  int left_;       // elements from there to the end of the segment
  bool whole_;     // of all threads of this warp
  float top_ = 0;  // of this warp
};

/// A block, or a cluster of p.segments blocks, makes one row after the other.
template <class T, int V, bool backward>
__global__ void __launch_bounds__(most_row_threads, 1) row_kernel(const __grid_constant__ SoftmaxParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ RowMeeting meeting;
  RowShare<T, V, backward> share(p, memory);
  int row = static_cast<int>(blockIdx.x) / p.segments;
  share.begin(row);
  if (p.segments > 1) Cluster::begin(meeting);
  for (unsigned turn = 0; row < p.rows; row += p.apart, ++turn) {
    const SoftmaxPart part = share.take(row, row + p.apart);
    share.finish(row, row + p.apart, join_row<backward>(part, meeting, turn, p.segments));
  }
}

}  // namespace everglow::cuda
