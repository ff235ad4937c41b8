// sm80.attention_flash2, the host half: what it accepts, its workspace, and its launches.
#include "core/arena.hpp"
#include "core/rounding.hpp"
#include "cuda/common/attention_arguments.hpp"
#include "cuda/common/device.hpp"
#include "cuda/sm80/attention_flash2.hpp"
#include "cuda/sm80/attention_flash2_bias.cuh"
#include "cuda/sm80/attention_flash2_forward.cuh"
#include "cuda/sm80/rows.hpp"

#include <limits>

namespace everglow::cuda {
namespace {

constexpr int64_t queries_of_block = 128, query_step = 64;

int columns_of(const AttentionDescription& d) { return flash_columns(std::max(d.head_dim, d.value_dim)); }
int64_t keys_of_block(int columns) { return columns == 256 ? 64 : 128; }

int64_t shared_forward(int columns) {
  return columns == 64    ? FlashForward<__half, 64>::shared_bytes
         : columns == 128 ? FlashForward<__half, 128>::shared_bytes
                          : FlashForward<__half, 256>::shared_bytes;
}
int64_t shared_backward(int columns, int stages) {
  return columns == 64    ? FlashBackward<__half, 64>::shared_bytes(stages)
         : columns == 128 ? FlashBackward<__half, 128>::shared_bytes(stages)
                          : FlashBackward<__half, 256>::shared_bytes(stages);
}
/// Two buffers for queries where the device has the room for them.
int stages_of(const AttentionQuery& q) {
  constexpr int64_t own = 1024;  // what the kernel has beside its tiles
  return shared_backward(columns_of(q.description), 2) + own <= q.device.figures.shared_bytes ? 2 : 1;
}

/// Thread blocks that run at once; below it, forward splits the keys.
int64_t forward_slots(const AttentionQuery& q) {
  const int columns = columns_of(q.description);
  return q.device.figures.units * (columns == 64 ? 3 : columns == 128 ? 2 : 1);
}
/// Parts of the keys for a run of some sizes. With `deterministic` there is one, since a run's bits must not depend on the batch.
int64_t splits_of(const AttentionQuery& q, int64_t blocks, int64_t keys) {
  constexpr int64_t least_keys = 256;
  if (q.options.deterministic || blocks == 0) return 1;
  return std::max<int64_t>(1, std::min({forward_slots(q) / blocks, keys / least_keys, int64_t{64}}));
}

struct ForwardScratch {
  float *sums, *statistics;
  ForwardScratch(Arena& arena, const AttentionQuery& q) {
    // Splits times blocks are at most the slots, and at most the blocks of the plan with as many splits as its keys allow.
    const int64_t most = splits_of(q, 1, q.sizes.keys), slots = most == 1 ? 0 : std::max<int64_t>(forward_slots(q), 1);
    const int64_t all = std::max<int64_t>(q.sizes.batch * q.description.heads * divided_up(q.sizes.queries, queries_of_block), 0);
    const int64_t rows = std::min(slots, all * most) * queries_of_block;
    sums = arena.take<float>(rows * columns_of(q.description));
    statistics = arena.take<float>(rows * 2);
  }
};

struct BackwardScratch {
  int64_t padded;
  float *lse, *delta, *dq;
  int *turns, *ticket;
  BackwardScratch(Arena& arena, const AttentionQuery& q) : padded(divided_up(q.sizes.queries, query_step) * query_step) {
    const int64_t pairs = q.sizes.batch * q.description.heads;
    lse = arena.take<float>(pairs * padded), delta = arena.take<float>(pairs * padded);
    dq = arena.take<float>(pairs * padded * columns_of(q.description));
    turns = arena.take<int>(q.options.deterministic ? pairs * padded / query_step : 0);
    ticket = arena.take<int>(q.options.deterministic ? 1 : 0);
  }
};

Footprint footprint(const AttentionQuery& q) {
  Arena forward, backward;
  const ForwardScratch f(forward, q);
  const BackwardScratch b(backward, q);
  return {.workspace = std::max(forward.bytes(), q.description.training ? backward.bytes() : 0)};
}

Verdict accepts(const AttentionQuery& q) {
  const AttentionDescription& d = q.description;
  const AttentionSizes& s = q.sizes;
  if (const Verdict device = accept_device(q.device); !device.accepted) return device;
  if (d.dtype != DType::f16 && d.dtype != DType::bf16) return decline("expected f16 or bf16, got ", name(d.dtype));
  const int64_t widest = std::max(d.head_dim, d.value_dim);
  if (widest > 256) return decline("expected a head dimension of at most 256, got ", widest);
  if (d.head_dim == 0) return decline("expected a head dimension, got 0");
  if (std::max(s.queries, s.keys) > most_attention_rows)
    return decline("expected at most ", most_attention_rows, " queries and keys, got ", std::max(s.queries, s.keys));
  const int64_t blocks = std::max(s.batch * d.heads * std::max(divided_up(s.queries, 64), divided_up(s.keys, 64)), int64_t{0});
  if (blocks > std::numeric_limits<int>::max() / 64) return decline("expected fewer thread blocks, got ", blocks);
  const int columns = columns_of(d);
  const int64_t shared = std::max(shared_forward(columns), d.training ? shared_backward(columns, 1) + 1024 : 0);
  if (shared > q.device.figures.shared_bytes)
    return decline("expected ", shared, " bytes of shared memory for a block, got ", q.device.figures.shared_bytes);
  return accept();
}

/// Options and layouts that the plain variant leaves out.
bool needs_general(const AttentionParams& p) {
  const bool aligned = p.q.aligned && p.k.aligned && p.v.aligned && p.d_o.aligned;
  return p.softcap > 0 || p.slopes != nullptr || p.bias.data != nullptr || p.drops != 0 || !(p.scale > 0) || !aligned;
}

void forward(const AttentionQuery& query, const AttentionForward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const ForwardScratch scratch(arena, query);
  AttentionParams p = attention_params(query, unpacked(query.description, tensors));
  p.general = needs_general(p);
  FlashForwardGrid grid;
  grid.blocks = static_cast<int>(divided_up(p.queries, queries_of_block));
  const int64_t blocks = static_cast<int64_t>(p.batch) * p.heads * grid.blocks;
  if (blocks == 0) return;
  if (p.right < no_limit) {  // keys and values of the heads at once fit into half of L2, so that they come from memory once
    const int64_t bytes = std::max<int64_t>(static_cast<int64_t>(p.keys) * (p.head_dim + p.value_dim) * 2, 1);
    grid.heads_at_once =
        static_cast<int>(std::clamp<int64_t>(query.device.figures.l2_bytes / 2 / bytes * p.group, 1, p.batch * p.heads));
  }
  grid.splits = static_cast<int>(splits_of(query, blocks, p.keys));
  grid.sums = scratch.sums, grid.statistics = scratch.statistics;
  const int columns = columns_of(query.description);
  const bool half = query.description.dtype == DType::f16;
  const auto launch = half ? (p.general ? launch_flash2_forward<__half, true> : launch_flash2_forward<__half, false>)
                           : (p.general ? launch_flash2_forward<__nv_bfloat16, true> : launch_flash2_forward<__nv_bfloat16, false>);
  launch(p, grid, columns, stream_of(stream));
}

void launch_bias(const AttentionQuery& query, const AttentionParams& p, const FlashBackwardGrid& grid, const AttentionBackward& t,
                 cudaStream_t stream) {
  const int columns = columns_of(query.description);
  FlashBiasGrid bias;
  bias.query_blocks = static_cast<int>(divided_up(p.queries, query_step)), bias.key_blocks = grid.blocks;
  bias.rows = static_cast<int>(t.dbias.size(0)), bias.heads = static_cast<int>(t.dbias.size(1));
  if (t.dbias.elements() == 0) return;
  if (query.description.dtype == DType::f16)
    launch_flash2_bias<__half>(p, grid, bias, columns, stream);
  else
    launch_flash2_bias<__nv_bfloat16>(p, grid, bias, columns, stream);
}

void backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const BackwardScratch scratch(arena, query);
  const AttentionBackward t = unpacked(query.description, tensors);
  AttentionParams p = attention_backward_params(query, t);
  p.general = needs_general(p);
  const int columns = columns_of(query.description);
  FlashBackwardGrid grid;
  grid.blocks = static_cast<int>(divided_up(p.keys, keys_of_block(columns)));
  grid.padded_queries = static_cast<int>(divided_up(p.queries, query_step) * query_step);
  grid.stages = stages_of(query);
  grid.lse = scratch.lse, grid.delta = scratch.delta;
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * grid.padded_queries;
  const auto zero = [&](void* memory, int64_t bytes) {
    if (bytes > 0) check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), stream_of(stream)), "attention.backward");
  };
  if (p.dq.data != nullptr) {
    grid.dq = scratch.dq;
    zero(grid.dq, rows * columns * 4);
    if (query.options.deterministic) {
      grid.turns = scratch.turns, grid.ticket = scratch.ticket;
      zero(grid.turns, rows / query_step * 4), zero(grid.ticket, 4);
    }
  }
  const bool half = query.description.dtype == DType::f16;
  const auto launch =
      half ? (p.general ? launch_flash2_backward<__half, true> : launch_flash2_backward<__half, false>)
           : (p.general ? launch_flash2_backward<__nv_bfloat16, true> : launch_flash2_backward<__nv_bfloat16, false>);
  launch(p, grid, columns, stream_of(stream));
  if (p.dbias.data != nullptr) launch_bias(query, p, grid, t, stream_of(stream));
}

}  // namespace

const AttentionRow attention_flash2{
    .name = "sm80.attention_flash2", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::cuda
