// AttentionParams from the tensors of a run.
#pragma once

#include "core/attention_mask.hpp"
#include "core/philox.hpp"
#include "cuda/common/attention_params.hpp"

#include <algorithm>

namespace everglow::cuda {

/// Rows and keys of one sequence that the kernels count with 32 bits, sums of several included.
inline constexpr int64_t most_attention_rows = int64_t{1} << 28;

/// The view must have four dimensions: see `unpacked`.
inline AttentionTensor attention_tensor(const ConstTensorView& view) {
  AttentionTensor t;
  if (!view.given()) return t;
  t.data = const_cast<void*>(view.data);
  t.batch = view.strides[0], t.row = view.strides[1], t.head = view.strides[2];
  const int64_t a_piece = 16 / static_cast<int64_t>(size_of(view.dtype));
  t.aligned = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.size(3) % a_piece == 0;
  for (int d = 0; d < 3; ++d) t.aligned = t.aligned && (view.size(d) <= 1 || view.strides[d] % a_piece == 0);
  return t;
}
inline AttentionStatistic attention_statistic(const ConstTensorView& view) {
  if (!view.given()) return {};
  return {static_cast<float*>(const_cast<void*>(view.data)), view.strides[0], view.strides[1], view.strides[2]};
}
inline AttentionLengths attention_lengths(const ConstTensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const int32_t*>(view.data), view.strides[0]};
}
inline AttentionBias attention_bias(const ConstTensorView& view) {
  if (!view.given()) return {};
  return {const_cast<void*>(view.data), view.size(0) == 1 ? 0 : view.strides[0], view.size(1) == 1 ? 0 : view.strides[1],
          view.strides[2], view.strides[3]};
}

/// What both directions have. `t` is an AttentionForward or an AttentionBackward that `unpacked` has seen.
template <class Tensors>
AttentionParams attention_params(const AttentionQuery& query, const Tensors& t) {
  const AttentionDescription& d = query.description;
  const AttentionGrid grid = attention_grid(query, t);
  AttentionParams p;
  p.q = attention_tensor(t.q), p.k = attention_tensor(t.k), p.v = attention_tensor(t.v), p.o = attention_tensor(t.o);
  p.lse = attention_statistic(t.lse);
  p.query_lengths = attention_lengths(t.query_lengths), p.key_lengths = attention_lengths(t.key_lengths);
  p.cu_queries = attention_lengths(t.cu_queries), p.cu_keys = attention_lengths(t.cu_keys);
  p.bias = attention_bias(t.bias);
  if (d.alibi) {
    p.slopes = static_cast<const float*>(t.alibi_slopes.data);
    p.slopes_batch = t.alibi_slopes.rank == 1 ? 0 : t.alibi_slopes.strides[0];
    p.slopes_head = t.alibi_slopes.stride(-1);
  }
  if (t.status.given()) p.status = static_cast<uint32_t*>(t.status.data);
  p.batch = static_cast<int>(grid.batch), p.heads = static_cast<int>(d.heads), p.kv_heads = static_cast<int>(d.kv_heads);
  p.group = d.kv_heads > 0 ? static_cast<int>(d.heads / d.kv_heads) : 1;
  p.queries = static_cast<int>(grid.queries), p.keys = static_cast<int>(grid.keys);
  p.head_dim = static_cast<int>(d.head_dim), p.value_dim = static_cast<int>(d.value_dim);
  p.total_queries = static_cast<int>(t.q.size(1)), p.total_keys = static_cast<int>(t.k.size(1));
  const auto limit = [&](int64_t window) {
    return window < 0 || window >= grid.queries + grid.keys ? no_limit : static_cast<int>(window);
  };
  p.left = limit(d.window_left), p.right = d.causal ? 0 : limit(d.window_right);
  p.top_left = d.alignment == CausalAlignment::top_left ? 1 : 0;
  p.scale = d.scale, p.softcap = d.softcap;
  p.drops = d.dropout > 0 ? 1 : 0;
  p.dropout_threshold = static_cast<uint32_t>(dropout_threshold(d.dropout));
  p.kept = static_cast<float>(1 / (1 - static_cast<double>(d.dropout)));
  p.seed = t.dropout_seed, p.offset = t.dropout_offset;
  if (t.dropout_state.given()) {
    p.dropout_state = static_cast<const int64_t*>(t.dropout_state.data);
    p.dropout_state_stride = t.dropout_state.strides[0];
  }
  return p;
}

/// Also what only backward has.
inline AttentionParams attention_backward_params(const AttentionQuery& query, const AttentionBackward& t) {
  AttentionParams p = attention_params(query, t);
  p.d_o = attention_tensor(t.d_o), p.dq = attention_tensor(t.dq), p.dk = attention_tensor(t.dk), p.dv = attention_tensor(t.dv);
  p.dlse = attention_statistic(t.dlse), p.dbias = attention_bias(t.dbias);
  return p;
}

}  // namespace everglow::cuda
