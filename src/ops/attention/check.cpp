// Arguments of the attention layer.
#include "ops/attention/check.hpp"

#include "core/attention_mask.hpp"
#include "core/check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace everglow::attention {
namespace {

constexpr std::string_view plan_name = "attention.plan";

void require_at_least(std::string_view argument, std::int64_t value, std::int64_t least) {
  require(value >= least, ErrorCode::invalid_argument, plan_name, argument, ": expected ", least, " or more, got ", value);
}

void check_sizes(const AttentionQuery& query) {
  const AttentionSizes& s = query.sizes;
  require_at_least("batch", s.batch, 0);
  require_at_least("queries", s.queries, 0);
  require_at_least("keys", s.keys, 0);
  require_at_least("total_queries", s.total_queries, 0);
  require_at_least("total_keys", s.total_keys, 0);
  require(query.description.packed || (s.total_queries == 0 && s.total_keys == 0), ErrorCode::invalid_argument, plan_name,
          "total_queries and total_keys: expected 0 where the batch is not packed, got ", s.total_queries, " and ", s.total_keys);
  const std::int64_t width = std::max(query.description.head_dim, query.description.value_dim), heads = query.description.heads;
  require_countable(plan_name, "batch x heads x queries x keys", {s.batch, heads, s.queries, s.keys});
  require_countable(plan_name, "batch x heads x queries x head_dim", {s.batch, heads, s.queries, width});
  require_countable(plan_name, "batch x heads x keys x head_dim", {s.batch, heads, s.keys, width});
}

void check_packed(const AttentionDescription& d) {
  if (!d.packed) return;
  for (const auto& [argument, set] : {std::pair("query_lengths", d.query_lengths), std::pair("key_lengths", d.key_lengths)})
    require(!set, ErrorCode::invalid_argument, plan_name, argument,
            ": expected false for packed batches, whose lengths follow from cu_queries and cu_keys, got true");
}

}  // namespace

AttentionDescription check(const AttentionQuery& query) {
  AttentionDescription d = query.description;
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, plan_name, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  require_at_least("heads", d.heads, 0);
  require_at_least("kv_heads", d.kv_heads, 0);
  if (d.kv_heads == 0) d.kv_heads = d.heads;
  require(d.kv_heads == 0 || d.heads % d.kv_heads == 0, ErrorCode::invalid_argument, plan_name, "kv_heads: expected a divisor of ",
          d.heads, " heads, got ", d.kv_heads);
  require_at_least("head_dim", d.head_dim, 0);
  require_at_least("value_dim", d.value_dim, 0);
  if (d.value_dim == 0) d.value_dim = d.head_dim;
  require(std::isfinite(d.scale), ErrorCode::invalid_argument, plan_name, "scale: expected a finite number, got ", d.scale);
  if (d.scale == 0) d.scale = d.head_dim == 0 ? 1 : static_cast<float>(1 / std::sqrt(static_cast<double>(d.head_dim)));
  require(std::isfinite(d.softcap) && d.softcap >= 0, ErrorCode::invalid_argument, plan_name,
          "softcap: expected 0 or a positive number, got ", d.softcap);
  require(d.dropout >= 0 && d.dropout < 1, ErrorCode::invalid_argument, plan_name,
          "dropout: expected 0 or more and less than 1, got ", d.dropout);
  require(d.alignment <= CausalAlignment::top_left, ErrorCode::invalid_argument, plan_name,
          "alignment: expected bottom_right or top_left, got ", static_cast<int>(d.alignment));
  require_at_least("window_left", d.window_left, -1);
  require_at_least("window_right", d.window_right, -1);
  check_packed(d);
  check_sizes(query);
  return d;
}

namespace {

/// Heads that lie side by side count as one last dimension, so that q, k and v in one matrix are seen to be apart.
ConstTensorView side_by_side(const ConstTensorView& view) {
  const int heads = view.rank - 2;
  if (view.rank < 3 || view.stride(-1) != 1 || (view.shape[heads] > 1 && view.strides[heads] != view.size(-1))) return view;
  ConstTensorView out = view;
  out.rank = view.rank - 1;
  out.shape[heads] = view.shape[heads] * view.size(-1);
  out.strides[heads] = 1;
  return out;
}

NamedView named(std::string_view name, const ConstTensorView& view) { return {name, side_by_side(view)}; }

void check_lengths(std::string_view where, std::string_view argument, const ConstTensorView& lengths, std::int64_t limit) {
  for (std::int64_t b = 0; b < lengths.size(0); ++b) {
    const std::int64_t length = length_at(lengths, b, 0);
    require(length >= 0 && length <= limit, ErrorCode::invalid_argument, where, argument, ": expected 0 to ", limit, " in row ", b,
            ", got ", length);
  }
}

/// Starts of packed sequences: from 0 to the rows of `tensor`, none before the one in front of it, none longer than `longest`.
void check_starts(std::string_view where, std::string_view argument, const ConstTensorView& starts, std::string_view tensor,
                  KeyRange rows_and_longest) {
  const auto [rows, longest] = rows_and_longest;
  require(length_at(starts, 0, 0) == 0, ErrorCode::invalid_argument, where, argument, ": expected 0 as the first, got ",
          length_at(starts, 0, 0));
  for (std::int64_t b = 0; b + 1 < starts.size(0); ++b) {
    const std::int64_t first = length_at(starts, b, 0), next = length_at(starts, b + 1, 0);
    require(next >= first, ErrorCode::invalid_argument, where, argument, ": expected ", first, " or more at position ", b + 1,
            ", since it may not decrease, got ", next);
    require(next - first <= longest, ErrorCode::invalid_argument, where, argument, ": expected at most ", longest,
            " rows in sequence ", b, ", got ", next - first);
  }
  const std::int64_t last = length_at(starts, starts.size(0) - 1, 0);
  require(last == rows, ErrorCode::invalid_argument, where, argument, ": expected the ", rows, " rows of ", tensor,
          " as the last, got ", last);
}

/// A view that the description does not announce must not come.
void require_absent(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  require(!view.given(), ErrorCode::invalid_argument, where, argument, ": expected none, since the description has no ", argument,
          ", got ", to_string(view));
}

/// What forward and backward have in common. `Tensors` is an AttentionForward or an AttentionBackward.
template <class Tensors>
class Checks {
 public:
  Checks(std::string_view where, const AttentionQuery& query, const Tensors& tensors) : where_(where), query_(query), t_(tensors) {}

  void inputs() {
    const AttentionDescription& d = query_.description;
    if (d.packed)
      packed();
    else
      batched();
    lengths("query_lengths", d.query_lengths, t_.query_lengths, queries);
    lengths("key_lengths", d.key_lengths, t_.key_lengths, keys);
    slopes();
    bias("bias", t_.bias, d.bias);
    require_dropout(where_, d.dropout != 0, {t_.dropout_seed, t_.dropout_offset, t_.dropout_state}, query_.device.device);
    require_optional(where_, "status", t_.status, {1}, DType::i32, query_.device.device);
  }

  /// Tensors with a row for each query or each key.
  void of_queries(std::string_view argument, const ConstTensorView& view, std::int64_t columns) const {
    rows(argument, view, {batch, queries, query_.description.heads, columns});
  }
  void of_keys(std::string_view argument, const ConstTensorView& view, std::int64_t columns) const {
    rows(argument, view, {batch, keys, query_.description.kv_heads, columns});
  }
  void tensor(std::string_view argument, const ConstTensorView& view, std::initializer_list<std::int64_t> shape) const {
    require_tensor(where_, argument, view, shape, query_.description.dtype, query_.device.device);
    require_unit_stride(where_, argument, view);
  }
  /// LSE and its gradient are f32, and f64 beside f64.
  void statistic(std::string_view argument, const ConstTensorView& view) const {
    const DType dtype = query_.description.dtype == DType::f64 ? DType::f64 : DType::f32;
    const std::int64_t shape[] = {batch, query_.description.heads, queries};
    require_tensor(where_, argument, view, std::span(shape).subspan(query_.description.packed ? 1 : 0), dtype,
                   query_.device.device);
  }
  void bias(std::string_view argument, const ConstTensorView& view, bool described) const {
    if (!described) return require_absent(where_, argument, view);
    const std::int64_t rows = view.rank == 4 && view.size(0) == 1 ? 1 : batch;
    const std::int64_t heads = view.rank == 4 && view.size(1) == 1 ? 1 : query_.description.heads;
    const bool packed = query_.description.packed;
    const std::int64_t sq = packed ? query_.sizes.queries : queries, sk = packed ? query_.sizes.keys : keys;
    require_tensor(where_, argument, view, {rows, heads, sq, sk}, query_.description.dtype, query_.device.device);
  }

  /// What is written shares no memory with itself, with the inputs, with what else is read, or with anything else that is written.
  void apart(std::initializer_list<NamedView> written, std::initializer_list<NamedView> also_read) const {
    std::vector<NamedView> read{named("q", t_.q),
                                named("k", t_.k),
                                named("v", t_.v),
                                named("query_lengths", t_.query_lengths),
                                named("key_lengths", t_.key_lengths),
                                named("cu_queries", t_.cu_queries),
                                named("cu_keys", t_.cu_keys),
                                named("alibi_slopes", t_.alibi_slopes),
                                named("bias", t_.bias),
                                named("dropout_state", t_.dropout_state)};
    read.insert(read.end(), also_read);
    require_all_apart(where_, std::span(written.begin(), written.size()), read);
  }

  std::int64_t batch = 0, queries = 0, keys = 0;  // packed: all rows of q and of k

 private:
  void batched() {
    const AttentionDescription& d = query_.description;
    tensor("q", t_.q, {-1, -1, d.heads, d.head_dim});
    tensor("k", t_.k, {t_.q.size(0), -1, d.kv_heads, d.head_dim});
    batch = t_.q.size(0), queries = t_.q.size(1), keys = t_.k.size(1);
    of_keys("v", t_.v, d.value_dim);
    at_most("q", "batch rows", batch, query_.sizes.batch);
    at_most("q", "queries", queries, query_.sizes.queries);
    at_most("k", "keys", keys, query_.sizes.keys);
    require_absent(where_, "cu_queries", t_.cu_queries), require_absent(where_, "cu_keys", t_.cu_keys);
  }
  void packed() {
    const AttentionDescription& d = query_.description;
    const AttentionSizes& s = query_.sizes;
    tensor("q", t_.q, {-1, d.heads, d.head_dim});
    tensor("k", t_.k, {-1, d.kv_heads, d.head_dim});
    queries = t_.q.size(0), keys = t_.k.size(0);
    of_keys("v", t_.v, d.value_dim);
    at_most("q", "rows", queries, s.total_queries);
    at_most("k", "rows", keys, s.total_keys);
    require_tensor(where_, "cu_queries", t_.cu_queries, {-1}, DType::i32, query_.device.device);
    batch = t_.cu_queries.size(0) - 1;
    require(batch >= 0, ErrorCode::invalid_argument, where_, "cu_queries: expected one start more than sequences, got none");
    at_most("cu_queries", "sequences", batch, s.batch);
    require_tensor(where_, "cu_keys", t_.cu_keys, {batch + 1}, DType::i32, query_.device.device);
    if (query_.device.device.kind != DeviceKind::cpu) return;
    check_starts(where_, "cu_queries", t_.cu_queries, "q", {queries, s.queries});
    check_starts(where_, "cu_keys", t_.cu_keys, "k", {keys, s.keys});
  }
  void rows(std::string_view argument, const ConstTensorView& view, const std::array<std::int64_t, 4>& shape) const {
    require_tensor(where_, argument, view, std::span(shape).subspan(query_.description.packed ? 1 : 0), query_.description.dtype,
                   query_.device.device);
    require_unit_stride(where_, argument, view);
  }
  void at_most(std::string_view argument, std::string_view what, std::int64_t came, std::int64_t limit) const {
    require(came <= limit, ErrorCode::invalid_argument, where_, argument, ": expected at most ", limit, ' ', what, ", got ", came);
  }
  void lengths(std::string_view argument, bool described, const ConstTensorView& view, std::int64_t limit) const {
    if (!described) return require_absent(where_, argument, view);
    require_tensor(where_, argument, view, {batch}, DType::i32, query_.device.device);
    if (query_.device.device.kind == DeviceKind::cpu) check_lengths(where_, argument, view, limit);
  }
  void slopes() const {
    const AttentionDescription& d = query_.description;
    if (!d.alibi) return require_absent(where_, "alibi_slopes", t_.alibi_slopes);
    if (t_.alibi_slopes.rank == 1)
      require_tensor(where_, "alibi_slopes", t_.alibi_slopes, {d.heads}, DType::f32, query_.device.device);
    else
      require_tensor(where_, "alibi_slopes", t_.alibi_slopes, {batch, d.heads}, DType::f32, query_.device.device);
  }

  std::string_view where_;
  const AttentionQuery& query_;
  const Tensors& t_;
};

}  // namespace

void check(const AttentionQuery& query, const AttentionForward& t) {
  constexpr std::string_view where = "attention.forward";
  const AttentionDescription& d = query.description;
  Checks<AttentionForward> checks(where, query, t);
  checks.inputs();
  checks.of_queries("o", t.o, d.value_dim);
  if (d.training || t.lse.given()) checks.statistic("lse", t.lse);
  checks.apart({named("o", t.o), named("lse", t.lse), {"status", t.status}}, {});
}

void check(const AttentionQuery& query, const AttentionBackward& t) {
  constexpr std::string_view where = "attention.backward";
  const AttentionDescription& d = query.description;
  require(d.training, ErrorCode::invalid_argument, where, "plan: expected a description with training, got one without");
  Checks<AttentionBackward> checks(where, query, t);
  checks.inputs();
  checks.of_queries("o", t.o, d.value_dim);
  checks.statistic("lse", t.lse);
  if (t.d_o.given()) checks.of_queries("d_o", t.d_o, d.value_dim);
  if (t.dlse.given()) checks.statistic("dlse", t.dlse);
  if (t.dq.given()) checks.of_queries("dq", t.dq, d.head_dim);
  if (t.dk.given()) checks.of_keys("dk", t.dk, d.head_dim);
  if (t.dv.given()) checks.of_keys("dv", t.dv, d.value_dim);
  if (t.dbias.given()) {
    checks.bias("dbias", t.dbias, d.bias);
    require(t.dbias.size(0) == t.bias.size(0) && t.dbias.size(1) == t.bias.size(1), ErrorCode::invalid_argument, where,
            "dbias: expected the shape of bias, got ", to_string(t.dbias));
  }
  checks.apart({named("dq", t.dq), named("dk", t.dk), named("dv", t.dv), named("dbias", t.dbias), {"status", t.status}},
               {named("o", t.o), named("lse", t.lse), named("d_o", t.d_o), named("dlse", t.dlse)});
}

}  // namespace everglow::attention
