// Embedding in plain loops. The gradient of a table row is the sum, in double and in the order of the list, of the rows of dy
// that used it. Serves every dtype.
#include "core/arena.hpp"
#include "core/indices.hpp"
#include "core/mutant.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

namespace everglow::reference {
namespace {

/// The uses of each table row as linked lists in ascending order: first[v], then next[n] until -1.
struct Scratch {
  std::int64_t* first = nullptr;  // [vocabulary]
  std::int64_t* next = nullptr;   // [indices]
};

Scratch scratch_of(const EmbeddingQuery& q, Arena& arena) {
  Scratch s;
  s.first = arena.take<std::int64_t>(q.description.vocabulary);
  s.next = arena.take<std::int64_t>(q.sizes.indices);
  return s;
}

void forward(const EmbeddingQuery&, const EmbeddingForward& t, void*, const Stream&) {
  for (std::int64_t n = 0; n < t.y.size(0); ++n)
    for (std::int64_t i = 0; i < t.y.size(1); ++i) write(t.y, read(t.table, read_index(t.indices, n), i), n, i);
}

void backward(const EmbeddingQuery& q, const EmbeddingBackward& t, void* workspace, const Stream&) {
  Arena arena(workspace);
  const Scratch s = scratch_of(q, arena);
  const EmbeddingDescription& d = q.description;
  for (std::int64_t v = 0; v < d.vocabulary; ++v) s.first[v] = -1;
  for (std::int64_t n = t.indices.size(0) - 1; n >= 0; --n) {
    const std::int64_t index = read_index(t.indices, n);
    s.next[n] = s.first[index];
    s.first[index] = n;
  }
  for (std::int64_t v = 0; v < d.vocabulary; ++v)
    for (std::int64_t i = 0; i < d.width; ++i) {
      double sum = t.accumulate ? dropped("embedding.reference_not_accumulated", read(t.dtable, v, i)) : 0;
      if (v != d.padding_index || mutant("embedding.reference_padding_has_gradient"))
        for (std::int64_t n = s.first[v]; n >= 0; n = s.next[n]) sum += read(t.dy, n, i);
      write(t.dtable, sum, v, i);
    }
}

}  // namespace

const EmbeddingRow embedding{.name = "reference.embedding",
                             .accepts = [](const EmbeddingQuery&) { return accept(); },
                             .footprint = arena_footprint<scratch_of, EmbeddingQuery>,
                             .forward = forward,
                             .backward = backward};

}  // namespace everglow::reference
