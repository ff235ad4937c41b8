// Softmax of f32 rows on a CPU. A row is cut into segments of a fixed length, whose maxima and sums are joined in their order, so
// the bits do not depend on who computes a segment: a thread takes whole rows, or, where rows are few and long, segments.
#include "core/arena.hpp"
#include "core/parallel.hpp"
#include "cpu/isa/softmax_kernels.hpp"
#include "cpu/rows.hpp"

#include <cmath>
#include <limits>

namespace everglow::cpu {
namespace {

constexpr std::int64_t segment = 16384;  // columns
constexpr std::int64_t grain = 8192;     // elements that are worth a thread

const SoftmaxKernels& kernels_for(Isa isa) {
  return select(isa, portable::softmax_kernels, avx2::softmax_kernels, avx512::softmax_kernels);
}

std::int64_t segments_of(std::int64_t columns) { return (columns + segment - 1) / segment; }
/// Rows of a run that are shared by the segment: fewer rows than threads, and more than one segment each.
bool shares_rows(const SoftmaxQuery& query, std::int64_t rows, std::int64_t columns) {
  return rows < query.threads && segments_of(columns) > 1;
}

struct Scratch {
  SoftmaxPart* parts;  // [rows, segments] of rows that are shared
  Scratch(const SoftmaxQuery& query, void* workspace) {
    Arena arena(workspace);
    const std::int64_t columns = query.sizes.columns, rows = std::min<std::int64_t>(query.sizes.rows, query.threads - 1);
    parts = arena.take<SoftmaxPart>(segments_of(columns) > 1 ? rows * segments_of(columns) : 0);
    bytes = arena.bytes();
  }
  std::size_t bytes;
};

Footprint footprint(const SoftmaxQuery& query) { return {.workspace = Scratch(query, nullptr).bytes}; }

template <class Void>
auto* row_of(const BasicTensorView<Void>& view, std::int64_t row) {
  using Float = std::conditional_t<std::is_const_v<Void>, const float, float>;
  return static_cast<Float*>(view.data) + row * view.strides[0];
}

void join(SoftmaxPart& sum, const SoftmaxPart& part) {
  if (part.sum == 0) return;  // nothing but -inf
  if (sum.sum == 0) {
    sum = part;
    return;
  }
  const float top = std::fmax(sum.top, part.top);
  sum.sum = sum.sum * std::exp(sum.top - top) + part.sum * std::exp(part.top - top);
  sum.top = top;
}

constexpr SoftmaxPart nothing{-std::numeric_limits<float>::infinity(), 0};

struct Forward {
  const SoftmaxQuery& query;
  const SoftmaxForward& t;
  const SoftmaxKernels& kernels = kernels_for(query.isa);

  SoftmaxPart reduce(std::int64_t row, std::int64_t s) const {
    const std::int64_t begin = s * segment;
    return kernels.reduce(row_of(t.x, row) + begin, std::min(segment, t.x.size(1) - begin));
  }
  void write(std::int64_t row, std::int64_t s, const SoftmaxPart& whole) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.x.size(1) - begin);
    float* const y = row_of(t.y, row) + begin;
    if (whole.sum == 0 && query.description.masked_row == MaskedRow::zero) {
      std::fill_n(y, n, query.description.log ? whole.top : 0.0F);
      return;
    }
    const bool log = query.description.log;
    kernels.quotient(row_of(t.x, row) + begin, y, n, {whole.top, log ? std::log(whole.sum) : 1 / whole.sum}, log);
  }
};

struct Backward {
  const SoftmaxQuery& query;
  const SoftmaxBackward& t;
  const SoftmaxKernels& kernels = kernels_for(query.isa);

  SoftmaxPart reduce(std::int64_t row, std::int64_t s) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.y.size(1) - begin);
    return {0, kernels.gradient_sum(row_of(t.y, row) + begin, row_of(t.dy, row) + begin, n, query.description.log)};
  }
  void write(std::int64_t row, std::int64_t s, const SoftmaxPart& whole) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.y.size(1) - begin);
    kernels.gradient(row_of(t.y, row) + begin, row_of(t.dy, row) + begin, row_of(t.dx, row) + begin, n, whole.sum,
                     query.description.log);
  }
};

void add(SoftmaxPart& sum, const SoftmaxPart& part) { sum.sum += part.sum; }

/// Both directions: reduce the segments of a row, join them in their order, write the segments.
template <class Pass>
void run(const Pass& pass, std::int64_t rows, std::int64_t columns, void* workspace,
         void (*joins)(SoftmaxPart&, const SoftmaxPart&)) {
  const std::int64_t segments = segments_of(columns);
  const int threads = pass.query.threads;
  if (!shares_rows(pass.query, rows, columns)) {
    parallel_ranges(threads, rows, std::max<std::int64_t>(grain / std::max<std::int64_t>(columns, 1), 1),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        SoftmaxPart whole = nothing;
                        for (std::int64_t s = 0; s < segments; ++s) joins(whole, pass.reduce(row, s));
                        for (std::int64_t s = 0; s < segments; ++s) pass.write(row, s, whole);
                      }
                    });
    return;
  }
  SoftmaxPart* const parts = Scratch(pass.query, workspace).parts;
  parallel_tasks(threads, rows * segments, [&](std::int64_t i) { parts[i] = pass.reduce(i / segments, i % segments); });
  parallel_tasks(threads, rows * segments, [&](std::int64_t i) {
    SoftmaxPart whole = nothing;
    for (std::int64_t s = 0; s < segments; ++s) joins(whole, parts[i / segments * segments + s]);
    pass.write(i / segments, i % segments, whole);
  });
}

void forward(const SoftmaxQuery& query, const SoftmaxForward& t, void* workspace, const Stream&) {
  run(Forward{query, t}, t.x.size(0), t.x.size(1), workspace, join);
}
void backward(const SoftmaxQuery& query, const SoftmaxBackward& t, void* workspace, const Stream&) {
  run(Backward{query, t}, t.y.size(0), t.y.size(1), workspace, add);
}

Verdict accepts(const SoftmaxQuery& q) { return accept_f32(q.description.dtype); }

}  // namespace

const SoftmaxRow softmax_online{
    .name = "cpu.softmax_online", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::cpu
