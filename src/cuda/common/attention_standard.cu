// cuda.attention_standard, the host half: which part of the rows stands in memory at a time, and the launches.
#include "core/arena.hpp"
#include "core/rounding.hpp"
#include "core/visit.hpp"
#include "cuda/common/attention_arguments.hpp"
#include "cuda/common/attention_standard.cuh"
#include "cuda/common/device.hpp"
#include "cuda/common/rows.hpp"
#include "cuda/common/storage.cuh"

#include <cmath>
#include <limits>

namespace everglow::cuda {
namespace {

constexpr int64_t most_scores = int64_t{1} << 26;  // of one matrix in memory: 256 MiB

/// Rows and pairs of a part. With a bias all pairs are in one part, since those that share it are summed.
struct PartSizes {
  int64_t pairs, rows;
  PartSizes(int64_t all_pairs, int64_t queries, int64_t keys, bool bias) {
    const int64_t row = std::max<int64_t>(keys, 1) * (bias ? std::max<int64_t>(all_pairs, 1) : 1);
    rows = std::clamp<int64_t>(most_scores / row, 1, std::max<int64_t>(queries, 1));
    pairs = bias ? all_pairs : std::clamp<int64_t>(most_scores / (rows * row), 1, std::max<int64_t>(all_pairs, 1));
  }
};

struct Scratch {
  StandardPart part;
  Scratch(Arena& arena, const AttentionQuery& q, bool backward) {
    const AttentionDescription& d = q.description;
    const AttentionSizes& s = q.sizes;
    const int64_t pairs = s.batch * d.heads;
    // A smaller run may have other parts, but none has more elements than these bounds.
    const int64_t all = pairs * s.queries * s.keys, row = s.keys * (d.bias ? pairs : 1);
    const int64_t scores = std::min(all, std::max(most_scores, row));
    part.p = arena.take<float>(scores);
    if (!backward) return;
    part.ds = arena.take<float>(scores);
    if (d.softcap > 0) part.bend = arena.take<float>(scores);
    part.delta = arena.take<float>(pairs * s.queries);
    part.dk = arena.take<float>(s.batch * d.kv_heads * s.keys * d.head_dim);
    part.dv = arena.take<float>(s.batch * d.kv_heads * s.keys * d.value_dim);
  }
};

Footprint footprint(const AttentionQuery& q) {
  Arena forward, backward;
  const Scratch f(forward, q, false), b(backward, q, true);
  return {.workspace = std::max(forward.bytes(), q.description.training ? backward.bytes() : 0)};
}

/// No launch of any run of the plan has more thread blocks. In f64, since sizes that no memory holds may be asked for.
double most_blocks(const AttentionQuery& q) {
  const AttentionDescription& d = q.description;
  const AttentionSizes& s = q.sizes;
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const auto in_tiles = [&](int64_t n) { return std::ceil(real(n) / standard_tile); };
  const double pairs = real(s.batch) * real(d.heads), kv_pairs = real(s.batch) * real(d.kv_heads);
  const double query_tiles = pairs * in_tiles(s.queries), key_tiles = kv_pairs * in_tiles(s.keys);
  const double width = std::max(in_tiles(std::max(d.head_dim, d.value_dim)), 1.0);
  // Rows or keys of all pairs of a part: a bias keeps all pairs together.
  const double rows = std::min(query_tiles, std::max(real(most_scores), d.bias ? pairs : 0));
  const double keys = std::min(key_tiles, std::max(real(most_scores) + 1, d.bias ? key_tiles : 0));
  const double scores = d.bias ? pairs * in_tiles(s.keys) : 0, forward = std::max({pairs, rows * width, scores});
  if (!d.training) return forward;
  const double stored = kv_pairs * real(s.keys) * real(std::max(d.head_dim, d.value_dim)) / standard_threads;
  return std::max({forward, keys * width, stored});
}

Verdict accepts(const AttentionQuery& q) {
  const AttentionDescription& d = q.description;
  if (const Verdict device = accept_device(q.device); !device.accepted) return device;
  if (d.dtype == DType::f64) return decline("f64 is served by the CPU's reference alone");
  const int64_t most = std::max({q.sizes.queries, q.sizes.keys, q.sizes.total_queries, q.sizes.total_keys});
  if (most > most_attention_rows) return decline("expected at most ", most_attention_rows, " queries and keys, got ", most);
  if (const double blocks = most_blocks(q); blocks > std::numeric_limits<int>::max())
    return decline("expected fewer thread blocks of ", standard_tile, " x ", standard_tile, ", got ", blocks);
  return accept();
}

/// f(part) for every part of a run. Rows of a run without (batch, head) pairs or keys count too: what has no key is written.
template <class F>
void each_part(const AttentionParams& p, StandardPart part, bool bias, const F& f) {
  const int64_t pairs = static_cast<int64_t>(p.batch) * p.heads;
  const PartSizes sizes(pairs, p.queries, p.keys, bias);
  for (int64_t row = 0; row < p.queries; row += sizes.rows)
    for (int64_t pair = 0; pair < std::max<int64_t>(pairs, bias ? 1 : 0); pair += std::max<int64_t>(sizes.pairs, 1)) {
      part.first_pair = static_cast<int>(pair), part.pairs = static_cast<int>(std::min(sizes.pairs, pairs - pair));
      part.first_row = static_cast<int>(row), part.rows = static_cast<int>(std::min<int64_t>(sizes.rows, p.queries - row));
      f(part);
    }
}

/// Launches with one thread block for each of `blocks`, which `accepts` has bounded; none for none.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, cudaStream_t stream, const Arguments&... arguments) {
  if (blocks <= 0) return;
  kernel<<<static_cast<unsigned>(blocks), standard_threads, 0, stream>>>(arguments...);
  check_launch("attention.standard");
}

int64_t tiles(const StandardPart& part, int64_t columns) {
  return static_cast<int64_t>(part.pairs) * standard_tiles(part.rows) * standard_tiles(static_cast<int>(columns));
}

void forward(const AttentionQuery& query, const AttentionForward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const Scratch scratch(arena, query, false);
  const AttentionParams p = attention_params(query, unpacked(query.description, tensors));
  visit_storage(query.description.dtype, [&](auto element) {
    using T = Stored<decltype(element)>;
    each_part(p, scratch.part, query.description.bias, [&](const StandardPart& part) {
      const cudaStream_t to = stream_of(stream);
      launch(standard_scores<T, false>, tiles(part, p.keys), to, p, part);
      launch(standard_softmax<T>, static_cast<int64_t>(part.pairs) * part.rows, to, p, part);
      launch(standard_values<T>, tiles(part, p.value_dim), to, p, part);
    });
  });
}

template <class T>
void backward_of(const AttentionParams& p, StandardPart part, const AttentionBackward& t, bool bias, cudaStream_t stream) {
  const int64_t keys = static_cast<int64_t>(p.batch) * p.kv_heads * p.keys;
  if (p.dk.data == nullptr) part.dk = nullptr;
  if (p.dv.data == nullptr) part.dv = nullptr;
  const auto zero = [&](float* sums, int64_t n) {
    if (sums != nullptr && n > 0) check(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(n) * 4, stream), "attention.backward");
  };
  zero(part.dk, keys * p.head_dim), zero(part.dv, keys * p.value_dim);
  each_part(p, part, bias, [&](const StandardPart& here) {
    const int64_t kv_pairs = here.pairs == 0 ? 0 : (here.first_pair + here.pairs - 1) / p.group - here.first_pair / p.group + 1;
    const auto kv_tiles = [&](int width) { return kv_pairs * standard_tiles(p.keys) * standard_tiles(width); };
    launch(standard_scores<T, true>, tiles(here, p.keys), stream, p, here);
    launch(standard_delta<T>, divided_up(static_cast<int64_t>(here.pairs) * here.rows, standard_threads / 32), stream, p, here);
    launch(standard_score_gradients<T>, tiles(here, p.keys), stream, p, here);
    if (p.dbias.data != nullptr) {
      const int rows = static_cast<int>(t.dbias.size(0)), heads = static_cast<int>(t.dbias.size(1));
      launch(standard_bias<T>, divided_up(static_cast<int64_t>(here.rows) * p.keys * rows * heads, standard_threads), stream, p,
             here, rows, heads);
    }
    if (p.dq.data != nullptr) launch(standard_query_gradients<T>, tiles(here, p.head_dim), stream, p, here);
    if (here.dk != nullptr) launch(standard_key_gradients<T, false>, kv_tiles(p.head_dim), stream, p, here);
    if (here.dv != nullptr && p.d_o.data != nullptr)
      launch(standard_key_gradients<T, true>, kv_tiles(p.value_dim), stream, p, here);
  });
  if (part.dk != nullptr)
    launch(standard_store<T>, divided_up(keys * p.head_dim, standard_threads), stream, p, p.dk, part.dk, p.head_dim, p.scale);
  if (part.dv != nullptr)
    launch(standard_store<T>, divided_up(keys * p.value_dim, standard_threads), stream, p, p.dv, part.dv, p.value_dim, 1.0F);
}

void backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const Scratch scratch(arena, query, true);
  const AttentionBackward t = unpacked(query.description, tensors);
  const AttentionParams p = attention_backward_params(query, t);
  visit_storage(query.description.dtype, [&](auto element) {
    backward_of<Stored<decltype(element)>>(p, scratch.part, t, query.description.bias, stream_of(stream));
  });
}

}  // namespace

const AttentionRow attention_standard{
    .name = "cuda.attention_standard", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::cuda
