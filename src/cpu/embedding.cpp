// Embedding: copies of rows, and a gradient in which each table row is written once by one thread, which walks the list of
// its uses in ascending order. No atomics, and the same bits for any thread count.
#include "cpu/isa/embedding.hpp"
#include "core/arena.hpp"
#include "core/indices.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/visit.hpp"
#include "cpu/rows.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace everglow::cpu {
namespace {

constexpr std::int64_t grain = 16384;  // elements below which another thread costs more than it saves

struct Scratch {
  std::int64_t* first = nullptr;  // [vocabulary], -1 where a row is not used
  std::int64_t* next = nullptr;   // [indices]
};

Scratch scratch_of(const EmbeddingQuery& q, Arena& arena) {
  Scratch s;
  s.first = arena.take<std::int64_t>(q.description.vocabulary);
  s.next = arena.take<std::int64_t>(q.sizes.indices);
  return s;
}

/// Rows that are worth a thread.
std::int64_t grain_rows(std::int64_t width) { return std::max<std::int64_t>(grain / std::max<std::int64_t>(width, 1), 1); }

void forward(const EmbeddingQuery& q, const EmbeddingForward& t, void*, const Stream&) {
  const std::int64_t width = t.y.size(1);
  if (width == 0) return;
  visit_storage(q.description.dtype, [&](auto element) {
    using T = decltype(element);
    parallel_ranges(q.threads, t.y.size(0), grain_rows(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n)
        std::memcpy(row_of<T>(t.y, n), row_of<T>(t.table, read_index(t.indices, n)), static_cast<std::size_t>(width) * sizeof(T));
    });
  });
}

/// The loop from the storage type to the type of the table's gradient.
template <class T, class Out>
SumRows<T, Out> sum_rows(Isa isa) {
  const auto& kernels = select(isa, portable::embedding_kernels, avx2::embedding_kernels, avx512::embedding_kernels);
  if constexpr (std::is_same_v<T, Half> && std::is_same_v<Out, Half>)
    return kernels.f16;
  else if constexpr (std::is_same_v<T, Half>)
    return kernels.f16_to_f32;
  else if constexpr (std::is_same_v<Out, BFloat16>)
    return kernels.bf16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return kernels.bf16_to_f32;
  else
    return kernels.f32;
}

template <class T, class Out>
void table_gradient(const EmbeddingQuery& q, const EmbeddingBackward& t, const Scratch& s) {
  const EmbeddingDescription& d = q.description;
  const SumRows<T, Out> sum = sum_rows<T, Out>(q.isa);
  // Frequent words have small indices: small parts, handed out one by one, keep the threads equally busy.
  const std::int64_t rows = grain_rows(d.width);
  parallel_tasks(q.threads, (d.vocabulary + rows - 1) / rows, [&](std::int64_t part) {
    for (std::int64_t v = part * rows; v < std::min(d.vocabulary, (part + 1) * rows); ++v) {
      Out* out = row_of<Out>(t.dtable, v);
      if (s.first[v] >= 0)
        sum(out, d.width, {static_cast<const T*>(t.dy.data), t.dy.strides[0], s.next, s.first[v]}, t.accumulate);
      else if (!t.accumulate)
        std::fill_n(out, d.width, Out{});
    }
  });
}

void backward(const EmbeddingQuery& q, const EmbeddingBackward& t, void* workspace, const Stream&) {
  const EmbeddingDescription& d = q.description;
  if (d.width == 0) return;
  Arena arena(workspace);
  const Scratch s = scratch_of(q, arena);
  std::fill_n(s.first, d.vocabulary, std::int64_t{-1});
  for (std::int64_t n = t.indices.size(0) - 1; n >= 0; --n) {
    const std::int64_t index = read_index(t.indices, n);
    s.next[n] = s.first[index];
    s.first[index] = n;
  }
  if (d.padding_index >= 0 && !mutant("embedding.padding_has_gradient")) s.first[d.padding_index] = -1;
  visit_storage(d.dtype, [&](auto element) {
    using T = decltype(element);
    if (t.dtable.dtype == DType::f32)
      table_gradient<T, float>(q, t, s);
    else
      table_gradient<T, T>(q, t, s);
  });
}

Verdict accepts(const EmbeddingQuery& q) { return accept_storage(q.description.dtype); }

}  // namespace

const EmbeddingRow embedding{.name = "cpu.embedding",
                             .accepts = accepts,
                             .footprint = arena_footprint<scratch_of, EmbeddingQuery>,
                             .forward = forward,
                             .backward = backward};

}  // namespace everglow::cpu
