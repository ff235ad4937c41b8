// Makes and runs attention cases.
#include "ops/attention_problem.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace everglow::test {
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

/// A [B, S, H, D] view of guarded memory, dense or with steps first in memory.
struct Tensor4 {
  HostTensor memory;
  bool steps_first = false;

  Tensor4() = default;
  Tensor4(DType dtype, std::vector<std::int64_t> shape, bool swap) : steps_first(swap) {
    if (swap) std::swap(shape[0], shape[1]);
    const std::int64_t row = shape[3];
    memory = HostTensor(dtype, std::move(shape), swap ? row + 5 : 0);
  }
  TensorView view() const { return steps_first ? memory.view().transposed(0, 1) : memory.view(); }
  std::int64_t place(std::int64_t i) const {  // logical index of the view -> logical index of the memory
    if (!steps_first) return i;
    const TensorView m = memory.view();
    const std::int64_t inner = m.size(2) * m.size(3), outer = i / inner;
    return ((outer % m.size(0)) * m.size(1) + outer / m.size(0)) * inner + i % inner;
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
  d.alibi = c.flag("alibi");
  d.bias = c.has("bias");
  d.query_lengths = d.key_lengths = c.flag("lengths");
  d.dtype = parse_dtype(c.text("dtype", "f32"));
  d.training = true;
  return d;
}

AttentionSizes attention_sizes(const cases::Case& c) {
  AttentionSizes s;
  s.batch = c.integer("batch", 1);
  s.queries = c.integer("queries", 1);
  s.keys = c.integer("keys", 1);
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
  if (d.alibi) in.slopes = draw(6, DType::f32, d.heads, 0, 0.5);
  in.bias_broadcast = c.text("bias", "full") == "broadcast";
  if (d.bias) in.bias = draw(7, d.dtype, (in.bias_broadcast ? 1 : s.batch * d.heads) * s.queries * s.keys);
  if (!d.key_lengths) return in;
  std::mt19937_64 random(seed() + 77);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    in.query_lengths.push_back(static_cast<double>(b == 0 ? s.queries : static_cast<std::int64_t>(random() % (s.queries + 1))));
    in.key_lengths.push_back(static_cast<double>(b == 1   ? 0
                                                 : b == 0 ? s.keys - 1
                                                          : static_cast<std::int64_t>(random() % (s.keys + 1))));
  }
  spoil(in.q, in.query_lengths, s.queries, d.heads * d.head_dim);
  spoil(in.d_o, in.query_lengths, s.queries, d.heads * dv);
  spoil(in.k, in.key_lengths, s.keys, kv * d.head_dim);
  spoil(in.v, in.key_lengths, s.keys, kv * dv);
  return in;
}

AttentionResults run_attention(const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in,
                               const AttentionRun& run) {
  const std::int64_t kv = d.kv_heads == 0 ? d.heads : d.kv_heads, dv = d.value_dim == 0 ? d.head_dim : d.value_dim;
  const DType statistic = d.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto tensor = [&](std::int64_t steps, std::int64_t heads, std::int64_t columns) {
    return Tensor4(d.dtype, {s.batch, steps, heads, columns}, run.steps_first);
  };
  Tensor4 q = tensor(s.queries, d.heads, d.head_dim), k = tensor(s.keys, kv, d.head_dim), v = tensor(s.keys, kv, dv);
  Tensor4 o = tensor(s.queries, d.heads, dv), d_o = o, dq = tensor(s.queries, d.heads, d.head_dim);
  d_o = tensor(s.queries, d.heads, dv);
  Tensor4 dk = tensor(s.keys, kv, d.head_dim), dval = tensor(s.keys, kv, dv);
  q.set(in.q), k.set(in.k), v.set(in.v), d_o.set(in.d_o);
  HostTensor lse(statistic, {s.batch, d.heads, s.queries}), dlse = filled(statistic, {s.batch, d.heads, s.queries}, in.dlse);
  AttentionForward f{.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse};
  f.dropout_seed = d.dropout > 0 ? in.seed : 0, f.dropout_offset = d.dropout > 0 ? in.offset : 0;
  HostTensor query_lengths, key_lengths, slopes, bias, dbias;
  if (d.query_lengths) f.query_lengths = query_lengths = filled(DType::i32, {s.batch}, in.query_lengths);
  if (d.key_lengths) f.key_lengths = key_lengths = filled(DType::i32, {s.batch}, in.key_lengths);
  if (d.alibi) f.alibi_slopes = slopes = filled(DType::f32, {d.heads}, in.slopes);
  if (d.bias) {
    const std::int64_t rows = in.bias_broadcast ? 1 : s.batch, heads = in.bias_broadcast ? 1 : d.heads;
    f.bias = bias = filled(d.dtype, {rows, heads, s.queries, s.keys}, in.bias);
    dbias = HostTensor(d.dtype, {rows, heads, s.queries, s.keys});
  }
  const AttentionPlan plan(d, s, Device::cpu(), run.options);
  const Scratch first(plan.workspace_bytes()), second(plan.workspace_bytes());
  plan.forward(f, {first.data(), first.bytes()});
  AttentionResults out{.o = o.values(), .lse = lse.values(), .dq = {}, .dk = {}, .dv = {}, .dbias = {}};
  EXPECT_TRUE(o.memory.guards_intact() && lse.guards_intact() && first.guards_intact());
  if (!run.backward) return out;
  AttentionBackward b{.q = f.q, .k = f.k, .v = f.v, .o = f.o, .lse = f.lse};
  b.query_lengths = f.query_lengths, b.key_lengths = f.key_lengths, b.alibi_slopes = f.alibi_slopes, b.bias = f.bias;
  b.d_o = d_o.view(), b.dlse = dlse, b.dq = dq.view(), b.dk = dk.view(), b.dv = dval.view();
  if (d.bias) b.dbias = dbias;
  b.dropout_seed = f.dropout_seed, b.dropout_offset = f.dropout_offset;
  plan.backward(b, {second.data(), second.bytes()});
  EXPECT_TRUE(dq.memory.guards_intact() && dk.memory.guards_intact() && dval.memory.guards_intact() && second.guards_intact());
  out.dq = dq.values(), out.dk = dk.values(), out.dv = dval.values();
  if (d.bias) out.dbias = dbias.values();
  return out;
}

}  // namespace everglow::test
