// The attention layer as a benchmark. A case that says training=0 leaves backward out.
#include "bench/rows.hpp"

#include <algorithm>

namespace everglow::bench {
namespace {

struct Tensors {
  TensorSets sets;
  int q = 0, k = 0, v = 0, o = 0, lse = 0, d_o = 0, dq = 0, dk = 0, dv = 0;
};

std::vector<Pass> passes(const AttentionPlan& plan, const std::shared_ptr<const Tensors>& t, const Settings& settings,
                         bool training) {
  const Buffer workspace(plan.workspace_bytes(), settings.where());
  const Stream stream = settings.stream();
  const auto forward = [=](std::int64_t i) {
    const TensorSets& s = t->sets;
    plan.forward({.q = s.at(t->q, i), .k = s.at(t->k, i), .v = s.at(t->v, i), .o = s.at(t->o, i), .lse = s.at(t->lse, i)},
                 workspace, stream);
  };
  if (!training) return {{{}, forward}};
  const auto backward = [=](std::int64_t i) {
    const TensorSets& s = t->sets;
    AttentionBackward b{.q = s.at(t->q, i), .k = s.at(t->k, i), .v = s.at(t->v, i), .o = s.at(t->o, i), .lse = s.at(t->lse, i)};
    b.d_o = s.at(t->d_o, i), b.dq = s.at(t->dq, i), b.dk = s.at(t->dk, i), b.dv = s.at(t->dv, i);
    plan.backward(b, workspace, stream);
  };
  return {{{}, forward}, {forward, backward}};
}

/// Pairs of a query and a key it sees, of one head of one row.
double seen_pairs(const AttentionDescription& d, const AttentionSizes& sizes) {
  double pairs = 0;
  for (std::int64_t q = 0; q < sizes.queries; ++q) {
    const std::int64_t diagonal = q + sizes.keys - sizes.queries;
    std::int64_t first = 0, end = sizes.keys;
    if (d.causal) end = std::min(end, diagonal + 1);
    if (d.window_right >= 0) end = std::min(end, diagonal + d.window_right + 1);
    if (d.window_left >= 0) first = std::max(first, diagonal - d.window_left);
    pairs += static_cast<double>(std::max<std::int64_t>(0, end - first));
  }
  return pairs;
}

}  // namespace

Problem attention_problem(const cases::Case& c, const Settings& settings) {
  const AttentionSizes sizes{.batch = c.integer("batch", 1), .queries = c.integer("queries", 1), .keys = c.integer("keys", 1)};
  AttentionDescription d{.heads = c.integer("heads", 1)};
  d.head_dim = c.integer("head_dim", 1), d.value_dim = c.integer("value_dim", d.head_dim);
  d.kv_heads = c.integer("kv_heads", d.heads), d.causal = c.flag("causal"), d.dtype = dtype_of(c);
  d.window_left = c.integer("window_left", -1), d.window_right = c.integer("window_right", -1);
  d.training = c.flag("training", true);
  const auto t = std::make_shared<Tensors>();
  TensorSets& s = t->sets;
  const std::vector<std::int64_t> q{sizes.batch, sizes.queries, d.heads, d.head_dim}, o{q[0], q[1], q[2], d.value_dim};
  const std::vector<std::int64_t> k{sizes.batch, sizes.keys, d.kv_heads, d.head_dim}, v{k[0], k[1], k[2], d.value_dim};
  t->q = s.add(d.dtype, q, -1, 1), t->k = s.add(d.dtype, k, -1, 1), t->v = s.add(d.dtype, v, -1, 1);
  t->o = s.add(d.dtype, o), t->lse = s.add(DType::f32, {sizes.batch, d.heads, sizes.queries});
  if (d.training)
    t->d_o = s.add(d.dtype, o, -1, 1), t->dq = s.add(d.dtype, q), t->dk = s.add(d.dtype, k), t->dv = s.add(d.dtype, v);
  s.allocate(places(settings));

  const double pairs = static_cast<double>(sizes.batch * d.heads) * seen_pairs(d, sizes);
  const auto width = static_cast<double>(d.head_dim), value = static_cast<double>(d.value_dim);
  const double bytes = s.bytes({t->q, t->k, t->v, t->o});
  // Forward: scores and output. Backward: the scores again, dp, dv, dq and dk.
  Problem out{std::string(name(d.dtype)), {{"forward", 2 * pairs * (width + value), bytes, Part::forward}}, {}};
  if (d.training) out.directions.push_back({"backward", 2 * pairs * (3 * width + 2 * value), 2 * bytes, Part::rest});
  append_rows<AttentionPlan>(out, settings, s, d, sizes,
                             [&](const AttentionPlan& plan, std::int64_t) { return passes(plan, t, settings, d.training); });
  return out;
}

}  // namespace everglow::bench
