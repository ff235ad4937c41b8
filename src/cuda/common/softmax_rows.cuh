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
/// memory.
template <class T, int V, bool backward>
class RowShare {
  using Elements = Pack<T, V>;
  static constexpr int pack_bytes = V * static_cast<int>(sizeof(T)), packs = held_packs(pack_bytes, backward ? 2 : 1);
  static constexpr bool ahead = pack_bytes > 2;

 public:
  __device__ RowShare(const SoftmaxParams& p, unsigned char* memory) : p_(p), memory_(memory) {
    const int each = packs + p.resident, lane = static_cast<int>(threadIdx.x) % 32;
    first_ = static_cast<int>(threadIdx.x) / 32 * each * 32 + lane;
    const int begin = static_cast<int>(Cluster::rank() * p.segment);
    column_ = begin + first_ * V;
    left_ = static_cast<int>(min(begin + p.segment, p.columns)) - column_;
  }

  /// The first row of this block, on its way.
  __device__ void begin(std::int64_t row) const {
#pragma unroll
    for (int i = 0; i < packs; ++i) fetch(row, i), ptx::commit_copies();
    for (int i = packs; i < packs + p_.resident; ++i) fetch(row, i);
    ptx::commit_copies();
  }

  /// Takes row `row` into registers and sends for the packs of row `next` in their place.
  __device__ __forceinline__ SoftmaxPart take(std::int64_t row, std::int64_t next) {
    SoftmaxPart part{negative_infinity(), 0};

#pragma unroll
    for (int i = 0; i < packs; ++i) {
      ptx::wait_for_copies<packs>();  // those of the resident packs and packs - 1 others are younger
      x_[i] = x_pack(row, i);
      if constexpr (backward) d_[i] = d_pack(row, i);
      fetch(next, i), ptx::commit_copies();
    }
    ptx::wait_for_copies<packs>();
    if constexpr (backward) {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.sum = pack_products(part.sum, x_[i], d_[i], p_.log);
      for (int i = packs; i < packs + p_.resident; ++i) part.sum = pack_products(part.sum, x_pack(row, i), d_pack(row, i), p_.log);
    } else {
#pragma unroll
      for (int i = 0; i < packs; ++i) part.top = pack_max(part.top, x_[i]);
      for (int i = packs; i < packs + p_.resident; ++i) part.top = pack_max(part.top, x_pack(row, i));
      part.top = join_max(part.top);
      top_ = part.top;
      const float from = below(part.top);
      forget();
      part.sum = sum_held(from);
      for (int i = packs; i < packs + p_.resident; ++i) part.sum = pack_sum(part.sum, x_pack(row, i), from);
    }
    return {part.top, join_sum(part.sum)};
  }

  /// Stores the results of row `row`, of which `whole` is known, and sends for the resident packs of row `next`.
  __device__ __forceinline__ void finish(std::int64_t row, std::int64_t next, const SoftmaxPart& whole) {
    forget();
    if constexpr (backward) {
      for (int i = packs; i < packs + p_.resident; ++i) {
        const Elements to = gradients(x_pack(row, i), d_pack(row, i), whole.sum, p_.log);
        fetch(next, i), store(row, i, to);
      }
      ptx::commit_copies();
#pragma unroll
      for (int i = 0; i < packs; ++i) store(row, i, gradients(x_[i], d_[i], whole.sum, p_.log));
    } else {
      const Normaliser normal(whole, p_);
      for (int i = packs; i < packs + p_.resident; ++i) {
        const Elements to = normal.results(x_pack(row, i));
        fetch(next, i), store(row, i, to);
      }
      ptx::commit_copies();
      store_held(row, normal);
    }
  }

 private:
  /// Keeps the compiler from holding in registers what it can make anew: which elements of each pack lie in the row, and 16-bit
  /// elements as f32.
  __device__ __forceinline__ void forget() {
    if constexpr (!(backward && pack_bytes == 16)) asm volatile("" : "+r"(left_));
    if constexpr (!backward && sizeof(T) == 2 && V > 1) {
#pragma unroll
      for (Elements& pack : x_) {
        std::uint32_t words[sizeof(Elements) / 4];
        memcpy(words, &pack, sizeof words);
#pragma unroll
        for (std::uint32_t& word : words) asm volatile("" : "+r"(word));
        memcpy(&pack, words, sizeof words);
      }
    }
  }

  __device__ __forceinline__ float sum_held(float from) {
    float sum = 0;
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
#pragma unroll
        for (int i = 0; i < packs; ++i) sum = pack_exponentials(sum, x_[i], from);
        return sum;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) sum = pack_sum(sum, x_[i], from);
    return sum;
  }
  __device__ __forceinline__ void store_held(std::int64_t row, const Normaliser& normal) const {
    if constexpr (keeps_exponentials<T>) {
      if (!p_.log) {
        const float factor = exponential<T>(top_ - normal.from) * normal.scale;
#pragma unroll
        for (int i = 0; i < packs; ++i) store(row, i, scaled(x_[i], factor));
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) store(row, i, normal.results(x_[i]));
  }

  /// Elements of the row from pack i on: all of the pack lies in the row where there are V.
  __device__ int elements(int i) const { return left_ - i * 32 * V; }
  __device__ unsigned char* slot_of(int tensor, int i) const {
    const int before = tensor == 0 ? 0 : static_cast<int>(blockDim.x) * (packs + p_.resident);
    return memory_ + (before + first_) * pack_bytes + i * 32 * pack_bytes;
  }
  __device__ std::int64_t place(const Plane& plane, std::int64_t row, int i) const {
    return row * plane.stride + column_ + i * 32 * V;
  }
  __device__ const T* data(const Plane& plane) const { return static_cast<const T*>(plane.data); }

  __device__ __forceinline__ void fetch(std::int64_t row, int i) const {
    if constexpr (ahead) {
      if (row >= p_.rows) return;
      fetch(p_.x, 0, row, i);
      if constexpr (backward) fetch(p_.d, 1, row, i);
    }
  }
  __device__ __forceinline__ void fetch(const Plane& plane, int tensor, std::int64_t row, int i) const {
    const int count = min(max(elements(i), 0), V);
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(slot_of(tensor, i)));
    ptx::copy_async<pack_bytes>(to, data(plane) + (count > 0 ? place(plane, row, i) : 0), count * static_cast<int>(sizeof(T)));
  }

  __device__ __forceinline__ Elements x_pack(std::int64_t row, int i) const { return pack(p_.x, 0, row, i); }
  __device__ __forceinline__ Elements d_pack(std::int64_t row, int i) const { return pack(p_.d, 1, row, i); }
  /// Past the end of the row: -inf forward, 0 backward.
  __device__ __forceinline__ Elements pack(const Plane& plane, int tensor, std::int64_t row, int i) const {
    Elements out;
    if constexpr (ahead) {
      std::uint32_t words[sizeof out / 4];
      const auto from = *reinterpret_cast<const Words<sizeof out>*>(slot_of(tensor, i));
      memcpy(words, &from, sizeof out);
      if constexpr (!backward) fill(words, elements(i));
      memcpy(&out, words, sizeof out);
    } else {
      out.at[0] = elements(i) > 0 ? data(plane)[place(plane, row, i)] : narrow<T>(backward ? 0 : negative_infinity());
    }
    return out;
  }
  /// By words: where single elements are replaced the compiler gives each of them a register.
  template <int N>
  static __device__ __forceinline__ void fill(std::uint32_t (&words)[N], int count) {
    constexpr int each = 4 / static_cast<int>(sizeof(T));
    constexpr std::uint32_t half = std::is_same_v<T, __half> ? 0xfc00U : 0xff80U,
                            filler = each == 1 ? 0xff800000U : half << 16 | half;
    if (count >= N * each) return;
#pragma unroll
    for (int w = 0; w < N; ++w)
      if (count < (w + 1) * each) words[w] = count <= w * each ? filler : (words[w] & 0xffffU) | (filler & 0xffff0000U);
  }

  __device__ __forceinline__ void store(std::int64_t row, int i, const Elements& pack) const {
    T* const to = const_cast<T*>(data(p_.to)) + place(p_.to, row, i);
    if (elements(i) >= V) {
      if constexpr (V > 1) {
        Words<sizeof pack> words;
        memcpy(&words, &pack, sizeof words);
        __stwb(reinterpret_cast<Words<sizeof pack>*>(to), words);
      } else {
        to[0] = pack.at[0];
      }
    } else if (V > 1 && elements(i) > 0) {
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < elements(i)) to[v] = pack.at[v];
    }
  }

  const SoftmaxParams& p_;
  Elements x_[packs], d_[backward ? packs : 1];
  unsigned char* memory_;
  int first_;      // of this thread's packs in the block's segment; the next ones are 32 apart
  int column_;     // where it begins
  int left_;       // elements from there to the end of the segment
  float top_ = 0;  // of this warp
};

/// A block, or a cluster of p.segments blocks, makes one row after the other.
template <class T, int V, bool backward>
__global__ void __launch_bounds__(most_row_threads, 1) row_kernel(const __grid_constant__ SoftmaxParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ RowMeeting meeting;
  RowShare<T, V, backward> share(p, memory);
  std::int64_t row = blockIdx.x / p.segments;
  share.begin(row);
  if (p.segments > 1) Cluster::begin(meeting);
  for (unsigned turn = 0; row < p.rows; row += p.apart, ++turn) {
    const SoftmaxPart part = share.take(row, row + p.apart);
    share.finish(row, row + p.apart, join_row<backward>(part, meeting, turn, static_cast<unsigned>(p.segments)));
  }
  if (p.segments > 1) Cluster::sync();
}

}  // namespace everglow::cuda
