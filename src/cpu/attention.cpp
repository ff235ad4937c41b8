// FlashAttention-2 on a CPU in f32: tiles of scores stay in the caches of a core, the softmax is online, one division at the end.
// Forward: tasks are (batch, head, query block). Backward: tasks are (batch, key/value head, run of keys), so that dk and dv have
// one writer; where several runs of keys share a head, each leaves its own part of dq, and these are added in a fixed order.
#include "core/arena.hpp"
#include "core/attention_mask.hpp"
#include "core/parallel.hpp"
#include "cpu/isa/attention_kernels.hpp"
#include "cpu/rows.hpp"

#include <limits>

namespace everglow::cpu {
namespace {

const AttentionForwardKernels& forward_kernels(Isa isa) {
  return select(isa, portable::attention_forward_kernels, avx2::attention_forward_kernels, avx512::attention_forward_kernels);
}
const AttentionBackwardKernels& backward_kernels(Isa isa) {
  return select(isa, portable::attention_backward_kernels, avx2::attention_backward_kernels, avx512::attention_backward_kernels);
}

std::int64_t divided_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return divided_up(n, to) * to; }

/// Element (b, s, h, 0) of a [B, S, H, D] tensor.
const float* at(const ConstTensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  return static_cast<const float*>(view.data) + b * view.strides[0] + s * view.strides[1] + h * view.strides[2];
}
float* at(const TensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  return static_cast<float*>(view.data) + b * view.strides[0] + s * view.strides[1] + h * view.strides[2];
}
/// The rows of one (batch, head) from row s on; none where the view is not given.
FlashRows rows_of(const ConstTensorView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  if (!view.given()) return {nullptr, 0};
  return {at(view, b, s, h), view.strides[1]};
}
/// As rows_of for a [B, H, S] tensor.
FlashRows statistics_of(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
  if (!view.given()) return {nullptr, 0};
  return {static_cast<const float*>(view.data) + b * view.strides[0] + h * view.strides[1] + s * view.strides[2], view.strides[2]};
}

/// Into how many runs the keys of a head are cut on the way back. It fixes the order of the sums in dq: with `deterministic` it
/// depends on the keys alone, else there are about four tasks a thread.
std::int64_t key_runs(const AttentionQuery& query, std::int64_t batch, std::int64_t keys) {
  if (query.options.deterministic) return std::clamp<std::int64_t>(divided_up(keys, 512), 1, 8);
  const std::int64_t tasks = std::max<std::int64_t>(batch * query.description.kv_heads, 1), wanted = 4 * query.threads;
  if (query.threads == 1 || tasks >= wanted) return 1;
  return std::clamp<std::int64_t>(divided_up(wanted, tasks), 1, std::max<std::int64_t>(divided_up(keys, 128), 1));
}

/// Elements of dq for the runs of keys of every head, at most, for any batch up to the plan's.
std::int64_t dq_part_elements(const AttentionQuery& query) {
  const std::int64_t most = std::min<std::int64_t>(query.sizes.batch, 4 * query.threads);
  std::int64_t runs = 0;
  for (std::int64_t b = 1; b <= most; ++b) {
    const std::int64_t each = key_runs(query, b, query.sizes.keys);
    if (each > 1) runs = std::max(runs, b * each);
  }
  if (query.options.deterministic && key_runs(query, 1, query.sizes.keys) > 1)
    runs = query.sizes.batch * key_runs(query, 1, query.sizes.keys);
  return runs * query.description.heads * query.sizes.queries * query.description.head_dim;
}

struct ThreadScratch {
  FlashScratch blocks;
  std::int32_t *first_key, *end_key;  // [R, M]
  float *dk, *dv;                     // sums of one run of keys
};

/// Elements between gathered rows, as the kernels have it: whole vectors and one more.
std::int64_t row_stride(const AttentionForwardKernels& kernels, std::int64_t width) {
  return rounded_up(width, kernels.lanes) + kernels.lanes;
}

/// The workspace: one part a thread, and the parts of dq.
class Scratch {
 public:
  Scratch(const AttentionQuery& query, void* workspace, bool backward)
      : query_(query), kernels_(forward_kernels(query.isa)), base_(workspace) {
    Arena one;
    take(one, backward);
    thread_bytes_ = one.bytes();
    Arena rest(workspace == nullptr ? nullptr
                                    : static_cast<std::byte*>(workspace) + thread_bytes_ * static_cast<std::size_t>(query.threads));
    if (backward) dq_parts = rest.take<float>(dq_part_elements(query));
    rest_bytes_ = rest.bytes();
  }
  std::size_t bytes() const { return thread_bytes_ * static_cast<std::size_t>(query_.threads) + rest_bytes_; }
  ThreadScratch of(int thread, bool backward) const {
    Arena arena(static_cast<std::byte*>(base_) + thread_bytes_ * static_cast<std::size_t>(thread));
    return take(arena, backward);
  }
  float* dq_parts = nullptr;  // [B, Hq, runs, Sq, D]

 private:
  ThreadScratch take(Arena& arena, bool backward) const {
    const AttentionDescription& d = query_.description;
    const std::int64_t m = kernels_.block_queries, n = kernels_.block_keys, r = backward ? 1 : kernels_.most_blocks;
    const std::int64_t wide = row_stride(kernels_, d.head_dim), wide_v = row_stride(kernels_, d.value_dim);
    ThreadScratch s{};
    s.first_key = arena.take<std::int32_t>(r * m), s.end_key = arena.take<std::int32_t>(r * m);
    s.blocks.q = arena.take<float>(r * d.head_dim * m);
    s.blocks.p = arena.take<float>(backward ? n * m : std::max(n * m, query_.sizes.keys));
    s.blocks.k_rows = arena.take<float>(n * wide), s.blocks.v_rows = arena.take<float>(n * wide_v);
    if (!backward) {
      s.blocks.o = arena.take<float>(r * d.value_dim * m);
      s.blocks.top = arena.take<float>(r * m), s.blocks.sum = arena.take<float>(r * m);
      return s;
    }
    s.blocks.ds = arena.take<float>(n * m);
    s.blocks.d_o = arena.take<float>(d.value_dim * m);
    s.blocks.dq = arena.take<float>(d.head_dim * m);
    s.blocks.q_rows = arena.take<float>(m * wide), s.blocks.d_o_rows = arena.take<float>(m * wide_v);
    s.dk = arena.take<float>(query_.sizes.keys * wide), s.dv = arena.take<float>(query_.sizes.keys * wide_v);
    return s;
  }

  const AttentionQuery& query_;
  const AttentionForwardKernels& kernels_;
  void* base_;
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
std::int64_t queries_of_block(const AttentionForwardKernels& kernels, std::int64_t queries) {
  const std::int64_t blocks = std::max<std::int64_t>(divided_up(queries, kernels.block_queries), 1);
  return std::max<std::int64_t>(rounded_up(divided_up(queries, blocks), kernels.lanes), kernels.lanes);
}

/// Fills in what each query of a block sees of the keys [begin, end), and the union.
void set_ranges(FlashShape& shape, const AttentionDescription& d, const AttentionRows& rows, std::int64_t first_query,
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

FlashShape shape_of(const AttentionDescription& d, std::int64_t queries) {
  return {.head_dim = d.head_dim,
          .value_dim = d.value_dim,
          .queries = queries,
          .key_begin = 0,
          .key_end = 0,
          .first_key = nullptr,
          .end_key = nullptr,
          .scale = d.scale};
}

void zero_rows(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end) {
  for (std::int64_t s = first; s < end; ++s) std::fill_n(at(view, b, s, h), view.size(3), 0.0F);
}

void forward(const AttentionQuery& query, const AttentionForward& t, void* workspace, const Stream&) {
  const AttentionDescription& d = query.description;
  const AttentionForwardKernels& kernels = forward_kernels(query.isa);
  const Scratch scratch(query, workspace, false);
  const std::int64_t sq = t.q.size(1), group = d.heads / d.kv_heads;
  const bool one_by_one = sq <= kernels.row_queries;
  const std::int64_t step = queries_of_block(kernels, sq), heads = t.q.size(0) * d.heads;
  // Blocks of queries that share gathered keys; fewer where the threads would run out of tasks.
  const std::int64_t together =
      std::clamp<std::int64_t>(divided_up(sq, step) * heads / (4 * query.threads), 1, kernels.most_blocks);
  const std::int64_t span = step * together, blocks = divided_up(sq, span);
  const auto block = [&](std::int64_t task, int thread) {
    const std::int64_t b = task / (blocks * d.heads), h = task / blocks % d.heads, first = task % blocks * span;
    const AttentionRows rows = attention_rows(d, t, b);
    const std::int64_t end = std::min(first + span, sq), valid = std::clamp(rows.queries, first, end);
    const ThreadScratch own = scratch.of(thread, false);
    const TensorView& lse = t.lse;
    float* const lse_row = lse.given() ? static_cast<float*>(lse.data) + b * lse.strides[0] + h * lse.strides[1] : nullptr;
    if (valid > first) {
      FlashForwardBlock work{.shape = shape_of(d, valid - first),
                             .q = rows_of(t.q, b, first, h),
                             .k = rows_of(t.k, b, 0, h / group),
                             .v = rows_of(t.v, b, 0, h / group),
                             .o = {at(t.o, b, first, h), t.o.strides[1]},
                             .lse = lse_row == nullptr ? nullptr : lse_row + first * lse.strides[2],
                             .lse_stride = lse.strides[2],
                             .scratch = own.blocks};
      set_ranges(work.shape, d, rows, first, {0, rows.keys}, own);
      if (one_by_one)
        kernels.rows(work);
      else
        kernels.blocks(work, step);
    }
    zero_rows(t.o, b, h, valid, end);
    for (std::int64_t i = valid; i < end && lse_row != nullptr; ++i)
      lse_row[i * lse.strides[2]] = -std::numeric_limits<float>::infinity();
  };
  const double work = static_cast<double>(std::min(span, sq) * t.k.size(1) * (d.head_dim + d.value_dim));
  run_tasks(query.threads, heads * blocks, work, block);
}

/// One run of backward.
class Backward {
 public:
  Backward(const AttentionQuery& query, const AttentionBackward& t, void* workspace)
      : query_(query),
        d_(query.description),
        t_(t),
        kernels_(forward_kernels(query.isa)),
        scratch_(query, workspace, true),
        sq_(t.q.size(1)),
        sk_(t.k.size(1)),
        step_(queries_of_block(kernels_, sq_)),
        group_(d_.heads / d_.kv_heads) {
    const std::int64_t wanted = key_runs(query, t.q.size(0), sk_);
    run_length_ = std::max<std::int64_t>(rounded_up(divided_up(sk_, wanted), kernels_.block_keys), 1);
    runs_ = std::max<std::int64_t>(divided_up(sk_, run_length_), 1);
  }

  void run() const {
    const double work =
        static_cast<double>(group_ * sq_ * std::min(run_length_, sk_)) * static_cast<double>(2 * d_.value_dim + 3 * d_.head_dim);
    run_tasks(query_.threads, t_.q.size(0) * d_.kv_heads * runs_, work, [&](std::int64_t task, int thread) {
      keys(task / (runs_ * d_.kv_heads), task / runs_ % d_.kv_heads, task % runs_, scratch_.of(thread, true));
    });
    if (runs_ == 1 || !t_.dq.given()) return;
    const std::int64_t rows = t_.q.size(0) * d_.heads * sq_;
    parallel_ranges(query_.threads, rows, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) add_parts(row / (d_.heads * sq_), row / sq_ % d_.heads, row % sq_);
    });
  }

 private:
  /// All queries against one run of keys.
  void keys(std::int64_t b, std::int64_t kv_head, std::int64_t run, const ThreadScratch& own) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    const std::int64_t begin = run * run_length_, end = std::min(begin + run_length_, sk_);
    const FlashOutput dk = accumulator(t_.dk, end - begin, own.dk), dv = accumulator(t_.dv, end - begin, own.dv);
    for (std::int64_t h = kv_head * group_; h < (kv_head + 1) * group_; ++h) {
      for (std::int64_t first = 0; first < rows.queries; first += step_) {
        FlashBackwardBlock work{.shape = shape_of(d_, std::min(step_, rows.queries - first)),
                                .q = rows_of(t_.q, b, first, h),
                                .k = rows_of(t_.k, b, 0, kv_head),
                                .v = rows_of(t_.v, b, 0, kv_head),
                                .o = rows_of(t_.o, b, first, h),
                                .d_o = rows_of(t_.d_o, b, first, h),
                                .lse = statistics_of(t_.lse, b, h, first),
                                .dlse = statistics_of(t_.dlse, b, h, first),
                                .dq = dq_rows(b, h, run, first),
                                .dk = dk,
                                .dv = dv,
                                .key_origin = begin,
                                .scratch = own.blocks};
        set_ranges(work.shape, d_, rows, first, {std::min(begin, rows.keys), std::min(end, rows.keys)}, own);
        backward_kernels(query_.isa).block(work);
      }
      if (runs_ == 1 && t_.dq.given()) zero_rows(t_.dq, b, h, rows.queries, sq_);
    }
    finish(t_.dk, dk, b, kv_head, {begin, end});
    finish(t_.dv, dv, b, kv_head, {begin, end});
  }

  /// Zeros for the keys [begin, end) in scratch: the rows of a gradient lie far apart, and every block of queries adds to them.
  FlashOutput accumulator(const TensorView& gradient, std::int64_t keys, float* scratch) const {
    if (!gradient.given()) return {nullptr, 0};
    const std::int64_t stride = row_stride(kernels_, gradient.size(3));
    std::fill_n(scratch, keys * stride, 0.0F);
    return {scratch, stride};
  }
  void finish(const TensorView& gradient, const FlashOutput& sum, std::int64_t b, std::int64_t kv_head, KeyRange keys) const {
    if (!gradient.given()) return;
    for (std::int64_t s = keys.begin; s < keys.end; ++s)
      std::copy_n(sum.data + (s - keys.begin) * sum.stride, gradient.size(3), at(gradient, b, s, kv_head));
  }

  float* part(std::int64_t b, std::int64_t h, std::int64_t run, std::int64_t i) const {
    return scratch_.dq_parts + (((b * d_.heads + h) * runs_ + run) * sq_ + i) * d_.head_dim;
  }
  FlashOutput dq_rows(std::int64_t b, std::int64_t h, std::int64_t run, std::int64_t first) const {
    if (!t_.dq.given()) return {nullptr, 0};
    if (runs_ > 1) return {part(b, h, run, first), d_.head_dim};
    return {at(t_.dq, b, first, h), t_.dq.strides[1]};
  }
  /// dq of one query: the parts of the runs of keys, in their order.
  void add_parts(std::int64_t b, std::int64_t h, std::int64_t i) const {
    float* const out = at(t_.dq, b, i, h);
    std::fill_n(out, d_.head_dim, 0.0F);
    if (i >= length_at(t_.query_lengths, b, sq_)) return;
    for (std::int64_t run = 0; run < runs_; ++run) {
      const float* const from = part(b, h, run, i);
      for (std::int64_t e = 0; e < d_.head_dim; ++e) out[e] += from[e];
    }
  }

  const AttentionQuery& query_;
  const AttentionDescription& d_;
  const AttentionBackward& t_;
  const AttentionForwardKernels& kernels_;
  Scratch scratch_;
  std::int64_t sq_, sk_, step_, group_, run_length_ = 1, runs_ = 1;
};

void backward(const AttentionQuery& query, const AttentionBackward& t, void* workspace, const Stream&) {
  Backward(query, t, workspace).run();
}

Footprint footprint(const AttentionQuery& query) {
  const Scratch forward(query, nullptr, false);
  if (!query.description.training) return {.workspace = forward.bytes()};
  return {.workspace = std::max(forward.bytes(), Scratch(query, nullptr, true).bytes())};
}

Verdict accepts(const AttentionQuery& q) {
  const AttentionDescription& d = q.description;
  if (d.dtype != DType::f32) return decline(name(d.dtype), " is not served yet");
  if (d.packed) return decline("packed batches are not served yet");
  if (d.dropout > 0) return decline("dropout is not served yet");
  if (d.softcap > 0) return decline("softcap is not served yet");
  if (d.alibi) return decline("ALiBi slopes are not served yet");
  if (d.bias) return decline("an additive bias is not served yet");
  if (q.sizes.keys > std::numeric_limits<std::int32_t>::max()) return decline("expected fewer than 2^31 keys, got ", q.sizes.keys);
  return accept();
}

}  // namespace

const AttentionRow attention_flash2{
    .name = "cpu.attention_flash2", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::cpu
