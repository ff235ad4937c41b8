// Makes and runs attention cases.
#include "cases/proof/attention_problem.hpp"

#include "cases/proof/placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace everglow::proof {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double rounded(DType dtype, double value) {
  double buffer = 0;
  write_element(&buffer, dtype, 0, value);
  return read_element(&buffer, dtype, 0);
}

Values draw(std::uint64_t stream, DType dtype, std::int64_t count, double low = -1, double high = 1) {
  std::mt19937_64 random(seed() * 7919 + stream);
  std::uniform_real_distribution<double> any(low, high);
  Values out(static_cast<std::size_t>(count));
  for (double& value : out) value = rounded(dtype, any(random));
  return out;
}

/// NaN in the rows [length, S) of a [B, S, rest] tensor.
void spoil(Values& values, const Values& lengths, std::int64_t rows, std::int64_t rest) {
  for (std::size_t b = 0; b < lengths.size(); ++b)
    for (auto i = static_cast<std::int64_t>(lengths[b]); i < rows; ++i)
      for (std::int64_t e = 0; e < rest; ++e)
        values[static_cast<std::size_t>((static_cast<std::int64_t>(b) * rows + i) * rest + e)] = nan;
}

/// A view of guarded memory in which two neighbouring dimensions may have changed places.
struct PlacedTensor {
  HostTensor memory;
  int swapped = -1;  // the first of the two; -1: none

  TensorView view() const { return swapped >= 0 ? memory.view().transposed(swapped, swapped + 1) : memory.view(); }
  std::int64_t place(std::int64_t i) const {  // logical index of the view -> logical index of the memory
    if (swapped < 0) return i;
    const TensorView m = memory.view();
    const std::int64_t first = m.size(swapped), second = m.size(swapped + 1);
    std::int64_t inner = 1;
    for (int d = swapped + 2; d < m.rank; ++d) inner *= m.size(d);
    const std::int64_t outer = i / inner, cell = outer % (first * second);
    return (outer - cell + cell % first * second + cell / first) * inner + i % inner;
  }
  void set(const Values& values) {
    for (std::size_t i = 0; i < values.size(); ++i) memory.put(place(static_cast<std::int64_t>(i)), values[i]);
  }
  Values values() const {
    Values out(static_cast<std::size_t>(memory.view().elements()));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = memory.at(place(static_cast<std::int64_t>(i)));
    return out;
  }
};

/// [B, S, H, D], dense or with steps first in memory; packed [S, H, D], dense or with gaps.
PlacedTensor row_tensor(DType dtype, std::vector<std::int64_t> shape, bool steps_first) {
  const bool swap = steps_first && shape.size() == 4;
  if (swap) std::swap(shape[0], shape[1]);
  const std::int64_t row = shape.back();
  return {HostTensor(dtype, std::move(shape), steps_first ? row + 5 : 0), swap ? 0 : -1};
}

/// A [rows, heads, Sq, Sk] bias, dense or with the queries side by side in memory.
PlacedTensor bias_tensor(DType dtype, std::vector<std::int64_t> shape, bool swap) {
  if (swap) std::swap(shape[2], shape[3]);
  return {HostTensor(dtype, std::move(shape)), swap ? 2 : -1};
}

/// The rows that one tensor of a run has: all of a padded batch, or only those within the lengths of a packed one.
struct Packing {
  bool packed = false;
  std::int64_t batch = 0, steps = 0;
  Values lengths;  // [B] of a packed batch

  std::vector<std::int64_t> shape(std::int64_t heads, std::int64_t columns) const {
    if (packed) return {total(), heads, columns};
    return {batch, steps, heads, columns};
  }
  std::vector<std::int64_t> statistic_shape(std::int64_t heads) const {
    if (packed) return {heads, total()};
    return {batch, heads, steps};
  }
  std::int64_t total() const { return static_cast<std::int64_t>(std::accumulate(lengths.begin(), lengths.end(), 0.0)); }
  Values starts() const {
    Values out{0};
    for (const double length : lengths) out.push_back(out.back() + length);
    return out;
  }
  /// f(index among the rows of the run, batch row, step) for each row of a packed run.
  template <class F>
  void for_rows(const F& f) const {
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(lengths[static_cast<std::size_t>(b)]); ++i) f(row++, b, i);
  }

  Values rows_in(const Values& padded, std::int64_t rest) const {
    if (!packed) return padded;
    Values out(static_cast<std::size_t>(total() * rest));
    for_rows([&](std::int64_t row, std::int64_t b, std::int64_t i) {
      std::copy_n(padded.begin() + (b * steps + i) * rest, rest, out.begin() + row * rest);
    });
    return out;
  }
  Values rows_out(const Values& values, std::int64_t rest) const {
    if (!packed) return values;
    Values out(static_cast<std::size_t>(batch * steps * rest));
    for_rows([&](std::int64_t row, std::int64_t b, std::int64_t i) {
      std::copy_n(values.begin() + row * rest, rest, out.begin() + (b * steps + i) * rest);
    });
    return out;
  }
  Values statistic_in(const Values& padded, std::int64_t heads) const {
    if (!packed) return padded;
    Values out(static_cast<std::size_t>(heads * total()));
    for_rows([&](std::int64_t row, std::int64_t b, std::int64_t i) {
      for (std::int64_t h = 0; h < heads; ++h)
        out[static_cast<std::size_t>(h * total() + row)] = padded[static_cast<std::size_t>((b * heads + h) * steps + i)];
    });
    return out;
  }
  Values statistic_out(const Values& values, std::int64_t heads) const {
    if (!packed) return values;
    Values out(static_cast<std::size_t>(batch * heads * steps), -std::numeric_limits<double>::infinity());
    for_rows([&](std::int64_t row, std::int64_t b, std::int64_t i) {
      for (std::int64_t h = 0; h < heads; ++h)
        out[static_cast<std::size_t>((b * heads + h) * steps + i)] = values[static_cast<std::size_t>(h * total() + row)];
    });
    return out;
  }
};

HostTensor filled(DType dtype, std::vector<std::int64_t> shape, const Values& values) {
  HostTensor out(dtype, std::move(shape));
  out.set(values);
  return out;
}

}  // namespace

AttentionDescription attention_description(const cases::Case& c) {
  AttentionDescription d;
  d.heads = c.integer("heads", 1);
  d.kv_heads = c.integer("kv_heads", 0);
  d.head_dim = c.integer("head_dim", 1);
  d.value_dim = c.integer("value_dim", 0);
  d.scale = static_cast<float>(c.number("scale", 0));
  d.causal = c.flag("causal");
  d.alignment = c.text("alignment", "bottom_right") == "top_left" ? CausalAlignment::top_left : CausalAlignment::bottom_right;
  d.window_left = c.integer("window_left", -1);
  d.window_right = c.integer("window_right", -1);
  d.softcap = static_cast<float>(c.number("softcap", 0));
  d.dropout = static_cast<float>(c.number("dropout", 0));
  d.alibi = c.has("alibi");
  d.bias = c.has("bias");
  d.query_lengths = d.key_lengths = c.flag("lengths");
  d.packed = c.flag("packed");
  d.dtype = parse_dtype(c.text("dtype", "f32"));
  d.training = true;
  return d;
}

AttentionSizes attention_sizes(const cases::Case& c) {
  AttentionSizes s;
  s.batch = c.integer("batch", 1);
  s.queries = c.integer("queries", 1);
  s.keys = c.integer("keys", 1);
  if (c.flag("packed")) s.total_queries = s.batch * s.queries, s.total_keys = s.batch * s.keys;
  return s;
}

AttentionDescription padded(AttentionDescription d) {
  if (d.packed) d.packed = false, d.query_lengths = d.key_lengths = true;
  return d;
}
AttentionSizes padded(AttentionSizes s) {
  s.total_queries = s.total_keys = 0;
  return s;
}

AttentionInputs attention_inputs(const AttentionDescription& d, const AttentionSizes& s, const cases::Case& c) {
  const std::int64_t kv = d.kv_heads == 0 ? d.heads : d.kv_heads, dv = d.value_dim == 0 ? d.head_dim : d.value_dim;
  AttentionInputs in;
  in.q = draw(1, d.dtype, s.batch * s.queries * d.heads * d.head_dim);
  in.k = draw(2, d.dtype, s.batch * s.keys * kv * d.head_dim);
  in.v = draw(3, d.dtype, s.batch * s.keys * kv * dv);
  in.d_o = draw(4, d.dtype, s.batch * s.queries * d.heads * dv);
  in.dlse = draw(5, DType::f32, s.batch * d.heads * s.queries);
  if (d.alibi) {
    in.slope_rows = c.text("alibi", "") == "rows" ? s.batch : 0;
    in.slopes = draw(6, DType::f32, (in.slope_rows > 0 ? in.slope_rows : 1) * d.heads, 0, 0.5);
  }
  const std::string shared = c.text("bias", "");
  in.bias_rows = shared == "broadcast" || shared == "heads" ? 1 : s.batch;
  in.bias_heads = shared == "broadcast" || shared == "rows" ? 1 : d.heads;
  if (d.bias) in.bias = draw(7, d.dtype, in.bias_rows * in.bias_heads * s.queries * s.keys);
  if (!d.key_lengths && !d.packed) return in;
  std::mt19937_64 random(seed() + 77);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t queries = b == 0 ? s.queries : static_cast<std::int64_t>(random() % (s.queries + 1));
    const std::int64_t keys = b == 0 ? s.keys - 1 : b == 1 ? 0 : static_cast<std::int64_t>(random() % (s.keys + 1));
    in.query_lengths.push_back(static_cast<double>(queries));
    in.key_lengths.push_back(static_cast<double>(std::max<std::int64_t>(keys, 0)));
  }
  spoil(in.q, in.query_lengths, s.queries, d.heads * d.head_dim);
  spoil(in.d_o, in.query_lengths, s.queries, d.heads * dv);
  spoil(in.k, in.key_lengths, s.keys, kv * d.head_dim);
  spoil(in.v, in.key_lengths, s.keys, kv * dv);
  return in;
}

namespace {

/// The tensors of one run; inputs filled, outputs poisoned.
struct RunTensors {
  Packing queries, keys;
  PlacedTensor q, k, v, o, d_o, dq, dk, dv;
  HostTensor lse, dlse, query_lengths, key_lengths, slopes;
  PlacedTensor bias, dbias;

  RunTensors(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in, bool steps_first)
      : queries{d.packed, s.batch, s.queries, in.query_lengths}, keys{d.packed, s.batch, s.keys, in.key_lengths} {
    const std::int64_t kv = d.kv_heads == 0 ? d.heads : d.kv_heads, columns = d.value_dim == 0 ? d.head_dim : d.value_dim;
    const auto of_queries = [&](std::int64_t width) { return row_tensor(d.dtype, queries.shape(d.heads, width), steps_first); };
    const auto of_keys = [&](std::int64_t width) { return row_tensor(d.dtype, keys.shape(kv, width), steps_first); };
    q = of_queries(d.head_dim), dq = of_queries(d.head_dim), o = of_queries(columns), d_o = of_queries(columns);
    k = of_keys(d.head_dim), dk = of_keys(d.head_dim), v = of_keys(columns), dv = of_keys(columns);
    q.set(queries.rows_in(in.q, d.heads * d.head_dim)), d_o.set(queries.rows_in(in.d_o, d.heads * columns));
    k.set(keys.rows_in(in.k, kv * d.head_dim)), v.set(keys.rows_in(in.v, kv * columns));
    const DType statistic = d.dtype == DType::f64 ? DType::f64 : DType::f32;
    lse = HostTensor(statistic, queries.statistic_shape(d.heads));
    dlse = filled(statistic, queries.statistic_shape(d.heads), queries.statistic_in(in.dlse, d.heads));
    if (d.query_lengths) query_lengths = filled(DType::i32, {s.batch}, in.query_lengths);
    if (d.key_lengths) key_lengths = filled(DType::i32, {s.batch}, in.key_lengths);
    if (d.packed) query_lengths = filled(DType::i32, {s.batch + 1}, queries.starts());
    if (d.packed) key_lengths = filled(DType::i32, {s.batch + 1}, keys.starts());
    if (d.alibi && in.slope_rows > 0) slopes = filled(DType::f32, {in.slope_rows, d.heads}, in.slopes);
    if (d.alibi && in.slope_rows == 0) slopes = filled(DType::f32, {d.heads}, in.slopes);
    if (!d.bias) return;
    const std::vector<std::int64_t> shape{in.bias_rows, in.bias_heads, s.queries, s.keys};
    bias = bias_tensor(d.dtype, shape, steps_first), dbias = bias_tensor(d.dtype, shape, steps_first);
    bias.set(in.bias);
  }

  /// What forward and backward are both given. `Tensors` is an AttentionForward or an AttentionBackward.
  template <class Tensors>
  Tensors common(const AttentionDescription& d, const AttentionInputs& in) const {
    Tensors t{.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse};
    if (d.query_lengths) t.query_lengths = query_lengths;
    if (d.key_lengths) t.key_lengths = key_lengths;
    if (d.packed) t.cu_queries = query_lengths, t.cu_keys = key_lengths;
    if (d.alibi) t.alibi_slopes = slopes;
    if (d.bias) t.bias = bias.view();
    t.dropout_seed = d.dropout > 0 ? in.seed : 0, t.dropout_offset = d.dropout > 0 ? in.offset : 0;
    return t;
  }
};

}  // namespace

AttentionResults run_attention(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in,
                               const AttentionRun& run) {
  const std::int64_t kv = d.kv_heads == 0 ? d.heads : d.kv_heads, columns = d.value_dim == 0 ? d.head_dim : d.value_dim;
  RunTensors t(d, s, in, run.steps_first);
  const AttentionPlan plan = run.plan != nullptr ? *run.plan : AttentionPlan(d, s, run.device, run.options);
  const Scratch first(plan.workspace_bytes()), second(plan.workspace_bytes());
  forward_on(run.device.device, plan, t.common<AttentionForward>(d, in), first);
  AttentionResults out;
  out.o = t.queries.rows_out(t.o.values(), d.heads * columns), out.lse = t.queries.statistic_out(t.lse.values(), d.heads);
  out.guards_intact = t.o.memory.guards_intact() && t.lse.guards_intact() && first.guards_intact();
  if (!run.backward) return out;
  AttentionBackward b = t.common<AttentionBackward>(d, in);
  b.d_o = t.d_o.view(), b.dlse = t.dlse, b.dq = t.dq.view(), b.dk = t.dk.view(), b.dv = t.dv.view();
  if (d.bias) b.dbias = t.dbias.view();
  backward_on(run.device.device, plan, b, second);
  for (const HostTensor* written : {&t.dq.memory, &t.dk.memory, &t.dv.memory})
    out.guards_intact = out.guards_intact && written->guards_intact();
  out.guards_intact = out.guards_intact && second.guards_intact();
  out.dq = t.queries.rows_out(t.dq.values(), d.heads * d.head_dim), out.dk = t.keys.rows_out(t.dk.values(), kv * d.head_dim);
  out.dv = t.keys.rows_out(t.dv.values(), kv * columns);
  if (!d.bias) return out;
  out.guards_intact = out.guards_intact && t.dbias.memory.guards_intact();
  out.dbias = t.dbias.values();
  return out;
}

AttentionResults exact_attention(AttentionDescription d, const AttentionSizes& s, const AttentionInputs& in) {
  d.dtype = DType::f64;
  return run_attention(padded(d), padded(s), in, {.options = {.force = "reference.attention"}});
}

}  // namespace everglow::proof
