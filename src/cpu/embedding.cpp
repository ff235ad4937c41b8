// Embedding in f32: copies of rows, and a gradient in which each table row is written once by one thread, which walks the list of
// its uses in ascending order. No atomics, and the same bits for any thread count.
#include "cpu/isa/embedding.hpp"
#include "core/arena.hpp"
#include "core/indices.hpp"
#include "core/parallel.hpp"
#include "cpu/rows.hpp"

#include <algorithm>
#include <cstring>

namespace everglow::cpu {
namespace {

constexpr std::int64_t grain_floats = 16384;  // floats below which another thread costs more than it saves

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

std::int64_t rows_of(std::int64_t floats, std::int64_t width) {
  return std::max<std::int64_t>(floats / std::max<std::int64_t>(width, 1), 1);
}

void forward(const EmbeddingQuery& q, const EmbeddingForward& t, void*, const Stream&) {
  const std::int64_t width = t.y.size(1);
  if (width == 0) return;
  parallel_ranges(q.threads, t.y.size(0), rows_of(grain_floats, width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      std::memcpy(static_cast<float*>(t.y.data) + n * t.y.strides[0],
                  static_cast<const float*>(t.table.data) + read_index(t.indices, n) * t.table.strides[0],
                  static_cast<std::size_t>(width) * sizeof(float));
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
  if (d.padding_index >= 0) s.first[d.padding_index] = -1;
  const auto& kernels = select(q.isa, portable::embedding_kernels, avx2::embedding_kernels, avx512::embedding_kernels);
  // Frequent words have small indices: small parts, handed out one by one, keep the threads equally busy.
  const std::int64_t rows = rows_of(grain_floats, d.width);
  parallel_tasks(q.threads, (d.vocabulary + rows - 1) / rows, [&](std::int64_t part) {
    for (std::int64_t v = part * rows; v < std::min(d.vocabulary, (part + 1) * rows); ++v) {
      float* out = static_cast<float*>(t.dtable.data) + v * t.dtable.strides[0];
      if (s.first[v] >= 0)
        kernels.sum_rows(out, d.width, {static_cast<const float*>(t.dy.data), t.dy.strides[0], s.next, s.first[v]}, t.accumulate);
      else if (!t.accumulate)
        std::memset(out, 0, static_cast<std::size_t>(d.width) * sizeof(float));
    }
  });
}

Verdict accepts(const EmbeddingQuery& q) { return accept_f32(q.description.dtype); }

}  // namespace

const EmbeddingRow embedding{.name = "cpu.embedding",
                             .accepts = accepts,
                             .footprint =
                                 [](const EmbeddingQuery& q) {
                                   Arena arena;
                                   scratch_of(q, arena);
                                   return Footprint{.workspace = arena.bytes()};
                                 },
                             .forward = forward,
                             .backward = backward};

}  // namespace everglow::cpu
