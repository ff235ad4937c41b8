// What the two directions of cpu.attention_flash2 share: where rows lie, the scratch of a thread, tasks, and the options of a
// block.
#pragma once

#include "core/arena.hpp"
#include "core/attention_mask.hpp"
#include "core/parallel.hpp"
#include "core/philox.hpp"
#include "core/rounding.hpp"
#include "cpu/isa/attention_kernels.hpp"

#include <cstring>

namespace everglow::cpu {

void attention_flash2_backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace,
                               const Stream& stream);
std::size_t attention_flash2_backward_bytes(const AttentionQuery& query);

inline const AttentionForwardKernels& forward_kernels(Isa isa) {
  return select(isa, portable::attention_forward_kernels, avx2::attention_forward_kernels, avx512::attention_forward_kernels,
                avx512_bf16::attention_forward_kernels);
}

inline FlashStorage storage_of(DType dtype) {
  return dtype == DType::f16 ? FlashStorage::f16 : dtype == DType::bf16 ? FlashStorage::bf16 : FlashStorage::f32;
}
/// Element (b, s, h, 0) of a [B, S, H, D] tensor, or (b, h, i, 0) of a bias.
inline const void* at(const ConstTensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t offset = b * view.strides[0] + s * view.strides[1] + h * view.strides[2];
  return static_cast<const std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}
inline void* at(const TensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  return const_cast<void*>(at(ConstTensorView(view), b, s, h));
}
/// The rows of one (batch, head) from row s on; none where the view is not given.
inline StoredRows rows_of(const ConstTensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  if (!view.given()) return {nullptr, 0, FlashStorage::f32};
  return {at(view, b, s, h), view.strides[1], storage_of(view.dtype)};
}
inline StoredOutput rows_of(const TensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  if (!view.given()) return {nullptr, 0, FlashStorage::f32};
  return {at(view, b, s, h), view.strides[1], storage_of(view.dtype)};
}
inline StoredOutput in_scratch(float* data, std::int64_t stride) { return {data, stride, FlashStorage::f32}; }
/// As rows_of for a [B, H, S] tensor of f32.
inline FlashRows statistics_of(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
  if (!view.given()) return {nullptr, 0};
  return {static_cast<const float*>(view.data) + b * view.strides[0] + h * view.strides[1] + s * view.strides[2], view.strides[2]};
}

/// Whether the kernels of small heads serve a run.
inline bool are_small(const AttentionQuery& query, const AttentionGrid& grid) {
  const AttentionDescription& d = query.description;
  const AttentionForwardKernels& kernels = forward_kernels(query.isa);
  return grid.queries <= kernels.block_queries && grid.keys <= kernels.block_queries && d.head_dim % kernels.lanes == 0 &&
         d.value_dim % kernels.lanes == 0 && d.softcap == 0 && d.dropout == 0 && !d.alibi && !d.bias;
}
inline const AttentionSmallKernels& small_kernels(Isa isa) {
  return select(isa, portable::attention_small_kernels, avx2::attention_small_kernels, avx512::attention_small_kernels,
                avx512_bf16::attention_small_kernels);
}

struct ThreadScratch {
  FlashScratch blocks;
  std::int32_t *first_key, *end_key;  // [R, M]
  float *dk, *dv;                     // sums of one run of keys
  float* dbias;                       // [M, bias_run]: sums over the rows and heads that share a bias
};

constexpr std::int64_t bias_run = 512;  ///< keys of the gradient of a shared bias that one task sums up

/// Elements between gathered rows, as the kernels have it: whole vectors and one more.
inline std::int64_t row_stride(const AttentionForwardKernels& kernels, std::int64_t width) {
  return rounded_up(width, kernels.lanes) + kernels.lanes;
}

/// The workspace: one part a thread, and `parts` floats that all share.
class AttentionScratch {
 public:
  AttentionScratch(const AttentionQuery& query, void* workspace, bool backward, std::int64_t parts)
      : query_(query), kernels_(forward_kernels(query.isa)), base_(workspace), backward_(backward) {
    Arena one;
    take(one);
    thread_bytes_ = one.bytes();
    Arena rest(workspace == nullptr ? nullptr
                                    : static_cast<std::byte*>(workspace) + thread_bytes_ * static_cast<std::size_t>(query.threads));
    this->parts = rest.take<float>(parts);
    rest_bytes_ = rest.bytes();
  }
  std::size_t bytes() const { return thread_bytes_ * static_cast<std::size_t>(query_.threads) + rest_bytes_; }
  ThreadScratch of(int thread) const {
    Arena arena(static_cast<std::byte*>(base_) + thread_bytes_ * static_cast<std::size_t>(thread));
    return take(arena);
  }
  float* parts = nullptr;

 private:
  ThreadScratch take(Arena& arena) const {
    const AttentionDescription& d = query_.description;
    const std::int64_t m = kernels_.block_queries, n = kernels_.block_keys, r = backward_ ? 1 : kernels_.most_blocks;
    const std::int64_t wide = row_stride(kernels_, d.head_dim), wide_v = row_stride(kernels_, d.value_dim);
    const std::int64_t tile = n * m, row = backward_ ? tile : std::max(tile, query_.sizes.keys);
    ThreadScratch s{};
    s.first_key = arena.take<std::int32_t>(r * m), s.end_key = arena.take<std::int32_t>(r * m);
    s.blocks.q = arena.take<float>(r * d.head_dim * m);
    s.blocks.p = arena.take<float>(row);
    s.blocks.k_rows = arena.take<float>(n * wide), s.blocks.v_rows = arena.take<float>(n * wide_v);
    if (d.bias) s.blocks.bias = arena.take<float>(tile);
    if (d.dropout > 0) s.blocks.keep = arena.take<float>(row);
    if (d.bias || d.dropout > 0) s.blocks.rows = arena.take<float>(m * row_stride(kernels_, n));
    if (!backward_) {
      if (d.dtype != DType::f32) s.blocks.q_rows = arena.take<float>(m * wide);
      s.blocks.o = arena.take<float>(r * d.value_dim * m);
      s.blocks.top = arena.take<float>(r * m), s.blocks.sum = arena.take<float>(r * m);
      return s;
    }
    if (d.softcap > 0) s.blocks.slopes = arena.take<float>(tile);
    if (d.bias) s.dbias = arena.take<float>(m * std::min(query_.sizes.keys, bias_run));
    s.blocks.ds = arena.take<float>(tile);
    s.blocks.d_o = arena.take<float>(d.value_dim * m);
    s.blocks.dq = arena.take<float>(d.head_dim * m);
    s.blocks.q_rows = arena.take<float>(m * wide), s.blocks.d_o_rows = arena.take<float>(m * wide_v);
    s.dk = arena.take<float>(query_.sizes.keys * wide), s.dv = arena.take<float>(query_.sizes.keys * wide_v);
    return s;
  }

  const AttentionQuery& query_;
  const AttentionForwardKernels& kernels_;
  void* base_;
  bool backward_;
  std::size_t thread_bytes_ = 0, rest_bytes_ = 0;
};

/// f(i, thread) for each i of [0, n), handed out in groups of about 20 us of work.
template <class F>
void run_tasks(int threads, std::int64_t n, double multiplications, const F& f) {
  const auto group = static_cast<std::int64_t>(std::clamp(1e6 / std::max(multiplications, 1.0), 1.0, 256.0));
  const std::int64_t groups = divided_up(n, std::min(group, std::max<std::int64_t>(divided_up(n, 4 * threads), 1)));
  const bool alone = threads == 1 || groups <= 1;  // then no region of ours is open, and the thread number would be another's
  parallel_tasks(threads, groups, [&](std::int64_t g) {
    const int thread = alone ? 0 : omp_get_thread_num();
    for (std::int64_t i = n * g / groups; i < n * (g + 1) / groups; ++i) f(i, thread);
  });
}

/// The part of a row of `queries` that one block takes: as few blocks as possible, of equal whole vectors.
inline std::int64_t queries_of_block(const AttentionForwardKernels& kernels, std::int64_t queries) {
  const std::int64_t blocks = std::max<std::int64_t>(divided_up(queries, kernels.block_queries), 1);
  return std::max<std::int64_t>(rounded_up(divided_up(queries, blocks), kernels.lanes), kernels.lanes);
}

/// Fills in what each query of a block sees of the keys [begin, end), and the union.
inline void set_ranges(FlashShape& shape, const AttentionDescription& d, const AttentionRows& rows, std::int64_t first_query,
                       KeyRange part, const ThreadScratch& scratch) {
  shape.key_begin = part.end, shape.key_end = part.begin;
  for (std::int64_t i = 0; i < shape.queries; ++i) {
    KeyRange keys = keys_of(d, rows, first_query + i);
    keys.begin = std::max(keys.begin, part.begin);
    keys.end = std::max(std::min(keys.end, part.end), keys.begin);
    scratch.first_key[i] = static_cast<std::int32_t>(keys.begin), scratch.end_key[i] = static_cast<std::int32_t>(keys.end);
    if (keys.begin == keys.end) continue;
    shape.key_begin = std::min(shape.key_begin, keys.begin), shape.key_end = std::max(shape.key_end, keys.end);
  }
  shape.first_key = scratch.first_key, shape.end_key = scratch.end_key;
}

inline FlashShape shape_of(const AttentionDescription& d, std::int64_t queries) {
  return {.head_dim = d.head_dim,
          .value_dim = d.value_dim,
          .queries = queries,
          .key_begin = 0,
          .key_end = 0,
          .first_key = nullptr,
          .end_key = nullptr,
          .scale = d.scale};
}

inline void zero_rows(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end) {
  const std::size_t bytes = static_cast<std::size_t>(view.size(3)) * size_of(view.dtype);
  for (std::int64_t s = first; s < end && bytes > 0; ++s) std::memset(at(view, b, s, h), 0, bytes);
}

/// The options of a block of one (batch, head) whose first query is `query`, counted in its sequence.
template <class Tensors>
FlashOptions options_of(const AttentionQuery& plan, const Tensors& t, const AttentionRows& rows, std::int64_t b, std::int64_t h,
                        std::int64_t query) {
  const AttentionDescription& d = plan.description;
  const AttentionGrid grid = attention_grid(plan, t);
  FlashOptions o{};
  o.softcap = d.softcap, o.diagonal = rows.diagonal + query;
  if (d.alibi) {
    const ConstTensorView& slopes = t.alibi_slopes;
    o.slope = static_cast<const float*>(
        slopes.data)[slopes.rank == 1 ? h * slopes.strides[0] : b * slopes.strides[0] + h * slopes.strides[1]];
  }
  if (d.bias) {
    o.bias = {at(t.bias, t.bias.size(0) == 1 ? 0 : b, t.bias.size(1) == 1 ? 0 : h, query), t.bias.strides[2],
              storage_of(t.bias.dtype)};
    o.bias_key = t.bias.strides[3];
  }
  o.scores = d.softcap > 0 || o.slope != 0 || d.bias;
  o.drops = d.dropout > 0;
  if (!o.drops) return o;
  o.threshold = static_cast<std::uint32_t>(dropout_threshold(d.dropout));
  o.kept = static_cast<float>(1 / (1 - static_cast<double>(d.dropout)));
  o.seed = t.dropout_seed, o.offset = t.dropout_offset;
  o.first_element = static_cast<std::uint64_t>(((b * d.heads + h) * grid.queries + query) * grid.keys);
  o.query_elements = static_cast<std::uint64_t>(grid.keys);
  return o;
}

}  // namespace everglow::cpu
