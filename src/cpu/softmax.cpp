// Softmax of f32, f16 and bf16 rows on a CPU, in f32 between loads and stores. A row is cut into segments of a fixed length, whose
// maxima and sums are joined in their order, so the bits do not depend on who computes a segment: a thread takes whole rows, or,
// where rows are few and long, segments.
#include "core/arena.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/visit.hpp"
#include "cpu/isa/softmax_kernels.hpp"
#include "cpu/rows.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace everglow::cpu {
namespace {

constexpr std::int64_t segment = 16384;  // columns
constexpr std::int64_t grain = 8192;     // elements that are worth a thread

/// The passes on a storage type.
template <class T>
const SoftmaxPasses<T>& passes_for(Isa isa) {
  const SoftmaxKernels& kernels = select(isa, portable::softmax_kernels, avx2::softmax_kernels, avx512::softmax_kernels);
  if constexpr (std::is_same_v<T, Half>)
    return kernels.f16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return kernels.bf16;
  else
    return kernels.f32;
}

std::int64_t segments_of(std::int64_t columns) { return (columns + segment - 1) / segment; }
/// Rows of a run that are shared by the segment: fewer rows than threads, and more than one segment each.
bool shares_rows(const SoftmaxQuery& query, std::int64_t rows, std::int64_t columns) {
  return rows < query.threads && segments_of(columns) > 1;
}

/// [rows, segments] of rows that are shared.
SoftmaxPart* parts_of(const SoftmaxQuery& query, Arena& arena) {
  const std::int64_t segments = segments_of(query.sizes.columns);
  return arena.take<SoftmaxPart>(segments > 1 ? std::min<std::int64_t>(query.sizes.rows, query.threads - 1) * segments : 0);
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

template <class T>
struct Forward {
  const SoftmaxQuery& query;
  const SoftmaxForward& t;
  const SoftmaxPasses<T>& passes = passes_for<T>(query.isa);

  SoftmaxPart reduce(std::int64_t row, std::int64_t s) const {
    const std::int64_t begin = s * segment;
    return passes.reduce(row_of<T>(t.x, row) + begin, std::min(segment, t.x.size(1) - begin));
  }
  void write(std::int64_t row, std::int64_t s, const SoftmaxPart& whole) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.x.size(1) - begin);
    T* const y = row_of<T>(t.y, row) + begin;
    if (whole.sum == 0 && query.description.masked_row == MaskedRow::zero) {
      passes.fill(y, n, query.description.log ? whole.top : 0);
      return;
    }
    const bool log = query.description.log;
    passes.quotient(row_of<T>(t.x, row) + begin, y, n, {whole.top, log ? std::log(whole.sum) : 1 / whole.sum}, log);
  }
};

template <class T>
struct Backward {
  const SoftmaxQuery& query;
  const SoftmaxBackward& t;
  const SoftmaxPasses<T>& passes = passes_for<T>(query.isa);

  SoftmaxPart reduce(std::int64_t row, std::int64_t s) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.y.size(1) - begin);
    return {0, passes.gradient_sum(row_of<T>(t.y, row) + begin, row_of<T>(t.dy, row) + begin, n, query.description.log)};
  }
  void write(std::int64_t row, std::int64_t s, const SoftmaxPart& whole) const {
    const std::int64_t begin = s * segment, n = std::min(segment, t.y.size(1) - begin);
    passes.gradient(row_of<T>(t.y, row) + begin, row_of<T>(t.dy, row) + begin, row_of<T>(t.dx, row) + begin, n, whole.sum,
                    query.description.log);
  }
};

void add(SoftmaxPart& sum, const SoftmaxPart& part) { sum.sum = dropped("softmax.last_segment_alone", sum.sum) + part.sum; }

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
  Arena arena(workspace);
  SoftmaxPart* const parts = parts_of(pass.query, arena);
  parallel_tasks(threads, rows * segments, [&](std::int64_t i) { parts[i] = pass.reduce(i / segments, i % segments); });
  parallel_tasks(threads, rows * segments, [&](std::int64_t i) {
    SoftmaxPart whole = nothing;
    for (std::int64_t s = 0; s < segments; ++s) joins(whole, parts[i / segments * segments + s]);
    pass.write(i / segments, i % segments, whole);
  });
}

void forward(const SoftmaxQuery& query, const SoftmaxForward& t, void* workspace, const Stream&) {
  visit_storage(query.description.dtype, [&](auto element) {
    run(Forward<decltype(element)>{query, t}, t.x.size(0), t.x.size(1), workspace, join);
  });
}
void backward(const SoftmaxQuery& query, const SoftmaxBackward& t, void* workspace, const Stream&) {
  visit_storage(query.description.dtype, [&](auto element) {
    run(Backward<decltype(element)>{query, t}, t.y.size(0), t.y.size(1), workspace, add);
  });
}

Verdict accepts(const SoftmaxQuery& q) { return accept_storage(q.description.dtype); }

}  // namespace

const SoftmaxRow softmax_online{.name = "cpu.softmax_online",
                                .accepts = accepts,
                                .footprint = arena_footprint<parts_of, SoftmaxQuery>,
                                .forward = forward,
                                .backward = backward};

}  // namespace everglow::cpu
