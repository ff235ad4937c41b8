// FlashAttention-2 on a CPU: arithmetic in f32, tensors in f32, f16 or bf16. Tiles of scores stay in the caches of a core, the
// softmax is online, one division at the end. Forward: tasks are (batch, head, query block); where few queries leave threads idle,
// (batch, head, part of the keys).
#include "core/mutant.hpp"
#include "cpu/attention_support.hpp"
#include "cpu/rows.hpp"
#include "gemm/gemm.hpp"

#include <cmath>
#include <limits>

namespace everglow::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Into how many parts the keys of a handful of queries are cut. It fixes the order of sums: with `deterministic` it depends on
/// the keys alone, else there are about two tasks a thread.
std::int64_t key_parts(const AttentionQuery& query, std::int64_t batch, std::int64_t keys) {
  if (query.options.deterministic) return std::clamp<std::int64_t>(divided_up(keys, 1024), 1, 8);
  const std::int64_t heads = std::max<std::int64_t>(batch * query.description.heads, 1), wanted = 2 * query.threads;
  if (query.threads == 1 || heads >= wanted) return 1;
  return std::clamp<std::int64_t>(divided_up(wanted, heads), 1, std::max<std::int64_t>(keys / 256, 1));
}

/// Floats for the parts of the keys of every head, at most, for any batch up to the plan's.
std::int64_t part_elements(const AttentionQuery& query) {
  const AttentionDescription& d = query.description;
  const std::int64_t queries = std::min<std::int64_t>(query.sizes.queries, forward_kernels(query.isa).row_queries);
  const std::int64_t most =
      query.options.deterministic ? query.sizes.batch : std::min<std::int64_t>(query.sizes.batch, 2 * query.threads);
  std::int64_t parts = 0;
  for (std::int64_t b = query.options.deterministic ? most : 1; b <= most; ++b) {
    const std::int64_t each = key_parts(query, b, query.sizes.keys);
    if (each > 1) parts = std::max(parts, b * each);
  }
  return parts * d.heads * queries * (d.value_dim + 2);
}

/// One run of forward.
class Forward {
 public:
  Forward(const AttentionQuery& query, const AttentionForward& t, void* workspace)
      : query_(query),
        d_(query.description),
        t_(t),
        kernels_(forward_kernels(query.isa)),
        scratch_(query, workspace, false, part_elements(query)),
        grid_(attention_grid(query, t)),
        one_by_one_(grid_.queries <= kernels_.row_queries),
        small_(!one_by_one_ && are_small(query, grid_)),
        step_(queries_of_block(kernels_, grid_.queries)),
        heads_(grid_.batch * d_.heads) {
    // Blocks of queries that share gathered keys; fewer where the threads would run out of tasks.
    const std::int64_t together =
        std::clamp<std::int64_t>(divided_up(grid_.queries, step_) * heads_ / (4 * query.threads), 1, kernels_.most_blocks);
    span_ = step_ * together, blocks_ = divided_up(grid_.queries, span_);
    if (one_by_one_) parts_ = key_parts(query, grid_.batch, grid_.keys);
  }

  void run() const {
    const double each = static_cast<double>(std::min(span_, grid_.queries) * divided_up(grid_.keys, parts_));
    run_tasks(query_.threads, heads_ * blocks_ * parts_, each * static_cast<double>(d_.head_dim + d_.value_dim),
              [&](std::int64_t task, int thread) {
                const std::int64_t head = task / (parts_ * blocks_);
                block(head / d_.heads, head % d_.heads, task / parts_ % blocks_ * span_, task % parts_, scratch_.of(thread));
              });
    if (parts_ == 1) return;
    parallel_ranges(query_.threads, heads_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) add_parts(head / d_.heads, head % d_.heads);
    });
  }

 private:
  void block(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t part, const ThreadScratch& own) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    const std::int64_t end = std::min(first + span_, rows.all_queries), valid = std::clamp(rows.queries, std::min(first, end), end);
    if (valid > first) {
      const std::int64_t query = rows.first_query + first, group = d_.heads / d_.kv_heads;
      FlashForwardBlock work{};
      work.shape = shape_of(d_, valid - first);
      work.q = rows_of(t_.q, b, query, h);
      work.k = rows_of(t_.k, b, rows.first_key, h / group), work.v = rows_of(t_.v, b, rows.first_key, h / group);
      work.o = rows_of(t_.o, b, query, h);
      if (t_.lse.given()) work.lse = lse_at(b, h, query), work.lse_stride = t_.lse.strides[2];
      work.options = options_of(query_, t_, rows, b, h, first);
      work.scratch = own.blocks;
      set_ranges(work.shape, d_, rows, first, {0, rows.keys}, own);
      if (parts_ > 1) take_part(work, rows, b * d_.heads + h, part, own);
      if (one_by_one_)
        kernels_.rows(work);
      else if (small_ && work.shape.key_begin < work.shape.key_end)
        small_kernels(query_.isa).forward(work);
      else
        kernels_.blocks(work, step_);
    }
    if (part == 0) no_keys(rows, b, h, valid, end);
  }

  /// Output 0 and LSE -inf for the queries [first, end), which lie past a length.
  void no_keys(const AttentionRows& rows, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end) const {
    zero_rows(t_.o, b, h, rows.first_query + first, rows.first_query + end);
    for (std::int64_t i = first; i < end && t_.lse.given(); ++i) *lse_at(b, h, rows.first_query + i) = minus_infinity;
  }
  float* lse_at(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return static_cast<float*>(t_.lse.data) + b * t_.lse.strides[0] + h * t_.lse.strides[1] + row * t_.lse.strides[2];
  }

  /// Where one part of the keys leaves [queries, 2] maximum and sum, then [queries, Dv] sums of values.
  float* part_of(std::int64_t head, std::int64_t part) const {
    return scratch_.parts + (head * parts_ + part) * grid_.queries * (d_.value_dim + 2);
  }
  void take_part(FlashForwardBlock& work, const AttentionRows& rows, std::int64_t head, std::int64_t part,
                 const ThreadScratch& own) const {
    const std::int64_t begin = work.shape.key_begin, keys = std::max<std::int64_t>(work.shape.key_end - begin, 0);
    set_ranges(work.shape, d_, rows, 0, {begin + keys * part / parts_, begin + keys * (part + 1) / parts_}, own);
    work.partial = part_of(head, part);
    work.o = in_scratch(work.partial + 2 * grid_.queries, d_.value_dim);
  }

  /// Adds the parts of one head in their order, each times e^(its maximum - the highest), in the place of the first.
  void add_parts(std::int64_t b, std::int64_t h) const {
    const AttentionRows rows = attention_rows(d_, t_, b);
    const auto values = [&](std::int64_t part, std::int64_t i) {
      return part_of(b * d_.heads + h, part) + 2 * grid_.queries + i * d_.value_dim;
    };
    for (std::int64_t i = 0; i < rows.queries; ++i) {
      float top = minus_infinity, sum = 0;
      for (std::int64_t part = 0; part < parts_; ++part) {
        const float here = part_of(b * d_.heads + h, part)[2 * i];
        if (here > top || std::isnan(here)) top = here;
      }
      float* const o = values(0, i);
      for (std::int64_t part = 0; part < parts_ && top != minus_infinity; ++part) {
        const float* const statistics = part_of(b * d_.heads + h, part) + 2 * i;
        const float factor = mutant("attention.parts_of_keys") ? 1 : std::exp(statistics[0] - top);
        sum += factor * statistics[1];
        for (std::int64_t e = 0; e < d_.value_dim; ++e) o[e] = (part == 0 ? 0 : o[e]) + factor * values(part, i)[e];
      }
      if (t_.lse.given()) *lse_at(b, h, rows.first_query + i) = sum == 0 ? minus_infinity : top + std::log(sum);
      const float factor = sum == 0 ? 0 : 1 / sum;
      for (std::int64_t e = 0; e < d_.value_dim; ++e) o[e] *= factor;
      kernels_.put({o, d_.value_dim}, 1, d_.value_dim, rows_of(t_.o, b, rows.first_query + i, h));
    }
  }

  const AttentionQuery& query_;
  const AttentionDescription& d_;
  const AttentionForward& t_;
  const AttentionForwardKernels& kernels_;
  AttentionScratch scratch_;  // its parts: [B, Hq, parts, 2 Sq + Sq Dv]
  AttentionGrid grid_;
  bool one_by_one_, small_;
  std::int64_t step_, heads_, span_ = 1, blocks_ = 1, parts_ = 1;
};

void forward(const AttentionQuery& query, const AttentionForward& tensors, void* workspace, const Stream&) {
  const AttentionForward t = unpacked(query.description, tensors);
  Forward(query, t, workspace).run();
}

Footprint footprint(const AttentionQuery& query) {
  const std::size_t forward = AttentionScratch(query, nullptr, false, part_elements(query)).bytes();
  return {.workspace = query.description.training ? std::max(forward, attention_flash2_backward_bytes(query)) : forward};
}

Verdict accepts(const AttentionQuery& q) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max() / 2;
  if (q.description.dtype == DType::f64) return decline("f64 is served by the reference alone");
  if (q.sizes.keys > limit) return decline("expected at most ", limit, " keys, got ", q.sizes.keys);
  if (q.sizes.queries > limit) return decline("expected at most ", limit, " queries, got ", q.sizes.queries);
  if (q.description.dtype == DType::bf16 && multiplies_bf16(q.isa))
    return {true, "q·k and do·v of bf16 multiplied as they are, in pairs; probabilities and their gradients in f32"};
  return {true, std::string(how_multiplied(q.isa, q.description.dtype))};
}

}  // namespace

const AttentionRow attention_flash2{.name = "cpu.attention_flash2",
                                    .accepts = accepts,
                                    .footprint = footprint,
                                    .forward = forward,
                                    .backward = attention_flash2_backward};

}  // namespace everglow::cpu
