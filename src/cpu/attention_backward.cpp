// cpu.attention_flash2 on the way back. Tasks are (batch, key/value head, run of keys), so that dk and dv have one writer; where
// several runs of keys share a head, each leaves its own part of dq, and these are added in a fixed order.
#include "core/mutant.hpp"
#include "cpu/attention_support.hpp"

namespace everglow::cpu {
namespace {

const AttentionBackwardKernels& backward_kernels(Isa isa) {
  return select(isa, portable::attention_backward_kernels, avx2::attention_backward_kernels, avx512::attention_backward_kernels,
                avx512_bf16::attention_backward_kernels);
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

/// One run of backward.
class Backward {
 public:
  Backward(const AttentionQuery& query, const AttentionBackward& t, void* workspace)
      : query_(query),
        d_(query.description),
        t_(t),
        kernels_(forward_kernels(query.isa)),
        scratch_(query, workspace, true, dq_part_elements(query)),
        grid_(attention_grid(query, t)),
        sq_(grid_.queries),
        sk_(grid_.keys),
        small_(are_small(query, grid_)),
        step_(queries_of_block(kernels_, sq_)),
        group_(d_.heads / std::max<std::int64_t>(d_.kv_heads, 1)) {
    const std::int64_t wanted = key_runs(query, grid_.batch, sk_);
    run_length_ = std::max<std::int64_t>(rounded_up(divided_up(sk_, wanted), kernels_.block_keys), 1);
    runs_ = std::max<std::int64_t>(divided_up(sk_, run_length_), 1);
  }

  void run() const {
    if (t_.dbias.given() && alone()) zero_bias_gradient();
    const double work =
        static_cast<double>(group_ * sq_ * std::min(run_length_, sk_)) * static_cast<double>(2 * d_.value_dim + 3 * d_.head_dim);
    run_tasks(query_.threads, grid_.batch * d_.kv_heads * runs_, work, [&](std::int64_t task, int thread) {
      const std::int64_t b = task / (runs_ * d_.kv_heads), kv_head = task / runs_ % d_.kv_heads;
      if (small_ && t_.d_o.given() && group_ == 1 && d_.dtype == DType::f32)
        small_head(b, kv_head, scratch_.of(thread));
      else
        keys(b, kv_head, task % runs_, scratch_.of(thread));
    });
    if (t_.dbias.given() && !alone()) bias_gradients();
    if (runs_ == 1 || !t_.dq.given()) return;
    const std::int64_t rows = grid_.batch * d_.heads * sq_;
    parallel_ranges(query_.threads, rows, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) add_parts(row / (d_.heads * sq_), row / sq_ % d_.heads, row % sq_);
    });
  }

 private:
  /// Each element of the bias belongs to one (batch, head): then its gradient has one writer in `keys`.
  bool alone() const { return t_.dbias.size(0) == grid_.batch && t_.dbias.size(1) == d_.heads; }

  /// A block of queries and a run of keys, with no gradient wanted yet.
  FlashBackwardBlock block_of(const AttentionRows& rows, std::int64_t b, std::int64_t h, KeyRange run, std::int64_t first,
                              const ThreadScratch& own) const {
    const std::int64_t query = rows.first_query + first;
    FlashBackwardBlock work{};
    work.shape = shape_of(d_, std::min(step_, rows.queries - first));
    work.q = rows_of(t_.q, b, query, h), work.o = rows_of(t_.o, b, query, h), work.d_o = rows_of(t_.d_o, b, query, h);
    work.k = rows_of(t_.k, b, rows.first_key, h / group_), work.v = rows_of(t_.v, b, rows.first_key, h / group_);
    work.lse = statistics_of(t_.lse, b, h, query), work.dlse = statistics_of(t_.dlse, b, h, query);
    work.key_origin = run.begin;
    work.options = options_of(query_, t_, rows, b, h, first);
    work.scratch = own.blocks;
    set_ranges(work.shape, d_, rows, first, {std::min(run.begin, rows.keys), std::min(run.end, rows.keys)}, own);
    return work;
  }

  /// All queries against one run of keys.
  void keys(std::int64_t b, std::int64_t kv_head, std::int64_t run, const ThreadScratch& own) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    const KeyRange part = keys_of_run(run, rows.all_keys);
    const FlashOutput dk = accumulator(t_.dk, part.end - part.begin, own.dk),
                      dv = accumulator(t_.dv, part.end - part.begin, own.dv);
    for (std::int64_t h = kv_head * group_; h < (kv_head + 1) * group_; ++h) {
      for (std::int64_t first = 0; first < rows.queries; first += step_) {
        FlashBackwardBlock work = block_of(rows, b, h, part, first, own);
        work.dq = dq_rows(rows, b, h, run, first), work.dk = dk, work.dv = dv;
        if (t_.dbias.given() && alone()) work.dbias = bias_rows(b, h, first, part.begin), work.dbias_key = t_.dbias.strides[3];
        if (small_ && work.shape.key_begin < work.shape.key_end)
          small_kernels(query_.isa).backward(work, true);
        else
          backward_kernels(query_.isa).block(work);
      }
      if (runs_ == 1 && t_.dq.given()) zero_rows(t_.dq, b, h, rows.first_query + rows.queries, rows.first_query + rows.all_queries);
    }
    finish(t_.dk, dk, b, kv_head, {rows.first_key + part.begin, rows.first_key + part.end});
    finish(t_.dv, dv, b, kv_head, {rows.first_key + part.begin, rows.first_key + part.end});
  }
  /// One small head: one block, whose rows of dk and dv have no other writer.
  void small_head(std::int64_t b, std::int64_t h, const ThreadScratch& own) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    KeyRange seen;
    std::int64_t queries = 0;
    if (rows.queries > 0) {
      FlashBackwardBlock work = block_of(rows, b, h, {0, rows.all_keys}, 0, own);
      work.dq = dq_rows(rows, b, h, 0, 0);
      if (t_.dk.given()) work.dk = in_place(t_.dk, b, rows.first_key, h);
      if (t_.dv.given()) work.dv = in_place(t_.dv, b, rows.first_key, h);
      if (work.shape.key_begin < work.shape.key_end) {
        small_kernels(query_.isa).backward(work, false);
        seen = {work.shape.key_begin, work.shape.key_end}, queries = rows.queries;
      }
    }
    if (t_.dq.given()) zero_rows(t_.dq, b, h, rows.first_query + queries, rows.first_query + rows.all_queries);
    for (const TensorView* gradient : {&t_.dk, &t_.dv}) {
      if (!gradient->given()) continue;
      zero_rows(*gradient, b, h, rows.first_key, rows.first_key + seen.begin);
      zero_rows(*gradient, b, h, rows.first_key + seen.end, rows.first_key + rows.all_keys);
    }
  }
  static FlashOutput in_place(const TensorView& gradient, std::int64_t b, std::int64_t s, std::int64_t h) {
    return {static_cast<float*>(at(gradient, b, s, h)), gradient.strides[1]};
  }
  KeyRange keys_of_run(std::int64_t run, std::int64_t keys) const {
    return {std::min(run * run_length_, keys), std::min((run + 1) * run_length_, keys)};
  }

  /// A bias that several rows or heads share: tasks are its blocks, and each adds what they give in their order in scratch, with
  /// scores computed again, so that the sum does not depend on the threads and is rounded once.
  void bias_gradients() const {
    const std::int64_t heads = t_.dbias.size(1), blocks = divided_up(sq_, step_), runs = divided_up(sk_, bias_run);
    const std::int64_t shared = (t_.dbias.size(0) == 1 ? grid_.batch : 1) * (heads == 1 ? d_.heads : 1);
    const double work = static_cast<double>(shared * std::min(step_, sq_) * std::min(bias_run, sk_) * (d_.head_dim + d_.value_dim));
    run_tasks(query_.threads, t_.dbias.size(0) * heads * blocks * runs, work, [&](std::int64_t task, int thread) {
      const std::int64_t row = task / (runs * blocks * heads), head = task / (runs * blocks) % heads;
      bias_gradient(row, head, task / runs % blocks * step_, task % runs * bias_run, scratch_.of(thread));
    });
  }
  void bias_gradient(std::int64_t row, std::int64_t head, std::int64_t first, std::int64_t key, const ThreadScratch& own) const {
    const bool every_row = t_.dbias.size(0) == 1, every_head = t_.dbias.size(1) == 1;
    const std::int64_t end = std::min(key + bias_run, sk_), keys = end - key, queries = std::min(step_, sq_ - first);
    std::fill_n(own.dbias, queries * keys, 0.0F);
    for (std::int64_t b = every_row ? 0 : row; b < (every_row ? grid_.batch : row + 1); ++b) {
      const AttentionRows rows = attention_rows(d_, t_, b);
      if (first >= rows.queries) continue;
      for (std::int64_t h = every_head ? 0 : head; h < (every_head ? d_.heads : head + 1); ++h) {
        FlashBackwardBlock work = block_of(rows, b, h, {key, end}, first, own);
        work.dbias = in_scratch(own.dbias, keys), work.dbias_key = 1, work.add_bias = !mutant("attention.bias_of_the_last_head");
        backward_kernels(query_.isa).block(work);
      }
    }
    put_bias_gradient({own.dbias, keys}, row, head, first, {key, end});
  }
  StoredOutput bias_rows(std::int64_t row, std::int64_t head, std::int64_t query, std::int64_t key) const {
    const std::int64_t bytes = key * t_.dbias.strides[3] * static_cast<std::int64_t>(size_of(t_.dbias.dtype));
    return {static_cast<std::byte*>(at(t_.dbias, row, head, query)) + bytes, t_.dbias.strides[2], storage_of(t_.dbias.dtype)};
  }
  void put_bias_gradient(const FlashRows& sums, std::int64_t row, std::int64_t head, std::int64_t first, KeyRange keys) const {
    const std::int64_t stride = t_.dbias.strides[3], count = std::min(step_, sq_ - first), width = keys.end - keys.begin;
    if (stride == 1) return kernels_.put(sums, count, width, bias_rows(row, head, first, keys.begin));
    for (std::int64_t i = 0; i < count; ++i) {  // rows of one element
      const StoredOutput to = bias_rows(row, head, first + i, keys.begin);
      kernels_.put({sums.data + i * sums.stride, 1}, width, 1, {to.data, stride, to.storage});
    }
  }
  void zero_bias_gradient() const {
    const TensorView& view = t_.dbias;
    const std::size_t size = size_of(view.dtype);
    parallel_ranges(query_.threads, view.size(0) * view.size(1) * view.size(2), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        auto* const to = static_cast<std::byte*>(
            at(view, row / (view.size(1) * view.size(2)), row / view.size(2) % view.size(1), row % view.size(2)));
        for (std::int64_t j = 0; j < view.size(3); ++j)
          std::memset(to + j * view.strides[3] * static_cast<std::int64_t>(size), 0, size);
      }
    });
  }

  /// Zeros for the keys [begin, end) in scratch: the rows of a gradient lie far apart, and every block of queries adds to them.
  FlashOutput accumulator(const TensorView& gradient, std::int64_t keys, float* scratch) const {
    if (!gradient.given()) return {nullptr, 0};
    const std::int64_t stride = row_stride(kernels_, gradient.size(3));
    std::fill_n(scratch, keys * stride, 0.0F);
    return {scratch, stride};
  }
  void finish(const TensorView& gradient, const FlashOutput& sum, std::int64_t b, std::int64_t kv_head, KeyRange keys) const {
    if (!gradient.given() || keys.begin == keys.end) return;
    kernels_.put({sum.data, sum.stride}, keys.end - keys.begin, gradient.size(3), rows_of(gradient, b, keys.begin, kv_head));
  }

  float* part(std::int64_t b, std::int64_t h, std::int64_t run, std::int64_t i) const {
    return scratch_.parts + (((b * d_.heads + h) * runs_ + run) * sq_ + i) * d_.head_dim;
  }
  StoredOutput dq_rows(const AttentionRows& rows, std::int64_t b, std::int64_t h, std::int64_t run, std::int64_t first) const {
    if (t_.dq.given() && runs_ > 1) return in_scratch(part(b, h, run, first), d_.head_dim);
    return rows_of(t_.dq, b, rows.first_query + first, h);
  }
  /// dq of one query: the parts of the runs of keys, in their order, added in the place of the first.
  void add_parts(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    const std::int64_t row = rows.first_query + i;
    if (i >= rows.queries) return zero_rows(t_.dq, b, h, row, row + (i < rows.all_queries ? 1 : 0));
    float* const sum = part(b, h, 0, i);
    for (std::int64_t run = 1; run < runs_; ++run) {
      const float* const from = part(b, h, run, i);
      for (std::int64_t e = 0; e < d_.head_dim; ++e) sum[e] += dropped("attention.dq_of_later_keys", from[e]);
    }
    kernels_.put({sum, d_.head_dim}, 1, d_.head_dim, rows_of(t_.dq, b, row, h));
  }

  const AttentionQuery& query_;
  const AttentionDescription& d_;
  const AttentionBackward& t_;
  const AttentionForwardKernels& kernels_;
  AttentionScratch scratch_;  // its parts: [B, Hq, runs, Sq, D] of dq
  AttentionGrid grid_;
  std::int64_t sq_, sk_;
  bool small_;
  std::int64_t step_, group_, run_length_ = 1, runs_ = 1;
};

}  // namespace

void attention_flash2_backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace, const Stream&) {
  const AttentionBackward t = unpacked(query.description, tensors);
  Backward(query, t, workspace).run();
}

std::size_t attention_flash2_backward_bytes(const AttentionQuery& query) {
  return AttentionScratch(query, nullptr, true, dq_part_elements(query)).bytes();
}

}  // namespace everglow::cpu
