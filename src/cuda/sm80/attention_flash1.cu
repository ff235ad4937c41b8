// sm80.attention_flash1, the host half: what it accepts, its workspace, and its launches.
#include "core/arena.hpp"
#include "cuda/common/attention_arguments.hpp"
#include "cuda/common/device.hpp"
#include "cuda/sm80/attention_flash1_backward.cuh"
#include "cuda/sm80/attention_flash1_forward.cuh"
#include "cuda/sm80/attention_flash2_statistics.cuh"
#include "cuda/sm80/rows.hpp"

#include <limits>

namespace everglow::cuda {
namespace {

constexpr int64_t query_step = 64;

int64_t padded(int64_t queries) { return (queries + query_step - 1) / query_step * query_step; }
int columns_of(const AttentionDescription& d) { return std::max(d.head_dim, d.value_dim) <= 64 ? 64 : 128; }

int64_t shared_backward(const AttentionDescription& d, int buffers) {
  return columns_of(d) == 64 ? Flash1Backward<__half, 64>::shared_bytes(buffers)
                             : Flash1Backward<__half, 128>::shared_bytes(buffers);
}

struct Scratch {
  Flash1Grid grid;
  Scratch(Arena& arena, const AttentionQuery& q) {
    const int64_t rows = q.sizes.batch * q.description.heads * padded(q.sizes.queries);
    grid.sums = arena.take<float>(rows * columns_of(q.description));
    grid.top = arena.take<float>(rows), grid.sum = arena.take<float>(rows);
  }
};
Footprint footprint(const AttentionQuery& q) {
  Arena arena;
  const Scratch scratch(arena, q);
  return {.workspace = arena.bytes()};
}

Verdict accepts(const AttentionQuery& q) {
  const AttentionDescription& d = q.description;
  if (const Verdict device = accept_device(q.device); !device.accepted) return device;
  if (d.dtype != DType::f16 && d.dtype != DType::bf16) return decline("expected f16 or bf16, got ", name(d.dtype));
  const int64_t widest = std::max(d.head_dim, d.value_dim), most = std::max(q.sizes.queries, q.sizes.keys);
  if (d.head_dim == 0 || widest > 128) return decline("expected a head dimension of 1 to 128, got ", widest);
  if (d.kv_heads != d.heads) return decline("expected as many key heads as heads, got ", d.kv_heads, " of ", d.heads);
  if (d.window_left >= 0 || d.window_right >= 0) return decline("windows came with FlashAttention-2");
  if (d.softcap > 0 || d.alibi || d.bias) return decline("softcap, ALiBi and bias came with FlashAttention-2");
  if (d.dropout > 0) return decline("dropout is served by sm80.attention_flash2");
  if (!(d.scale > 0)) return decline("expected a positive scale, got ", d.scale);
  if (most > most_attention_rows) return decline("expected at most ", most_attention_rows, " queries and keys, got ", most);
  const int64_t blocks = q.sizes.batch * d.heads;
  if (blocks > std::numeric_limits<int>::max()) return decline("expected fewer pairs of batch row and head, got ", blocks);
  const int64_t shared = shared_backward(d, 1);
  if (shared > q.device.figures.shared_bytes)
    return decline("expected ", shared, " bytes of shared memory for a block, got ", q.device.figures.shared_bytes);
  return accept();
}

/// f(storage type, integral constant of the columns).
template <class F>
void visit(const AttentionDescription& d, const F& f) {
  const auto columns = [&](auto element) {
    if (columns_of(d) == 64) return f(element, std::integral_constant<int, 64>{});
    return f(element, std::integral_constant<int, 128>{});
  };
  if (d.dtype == DType::f16) return columns(__half{});
  return columns(__nv_bfloat16{});
}

template <class C, class Kernel>
void launch(Kernel* kernel, const AttentionParams& p, const Flash1Grid& grid, cudaStream_t stream) {
  const uint32_t shared = C::shared_bytes(grid.buffers);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "attention");
  kernel<<<static_cast<unsigned>(p.batch * p.heads), C::threads, shared, stream>>>(p, grid);
  check_launch("attention");
}

void forward(const AttentionQuery& query, const AttentionForward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  Scratch scratch(arena, query);
  const AttentionParams p = attention_params(query, unpacked(query.description, tensors));
  if (p.batch * p.heads == 0 || p.queries == 0) return;
  scratch.grid.padded_queries = static_cast<int>(padded(p.queries));
  visit(query.description, [&](auto element, auto columns) {
    using C = Flash1Forward<decltype(element), decltype(columns)::value>;
    launch<C>(flash1_forward<C>, p, scratch.grid, stream_of(stream));
  });
}

void backward(const AttentionQuery& query, const AttentionBackward& tensors, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  Scratch scratch(arena, query);
  const AttentionParams p = attention_backward_params(query, unpacked(query.description, tensors));
  if (p.batch * p.heads == 0) return;
  Flash1Grid& grid = scratch.grid;
  grid.padded_queries = static_cast<int>(padded(p.queries));
  if (p.dq.data == nullptr) grid.sums = nullptr;
  grid.buffers = shared_backward(query.description, 2) <= query.device.figures.shared_bytes ? 2 : 1;
  const FlashBackwardGrid statistics{.padded_queries = grid.padded_queries, .lse = grid.top, .delta = grid.sum};
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * grid.padded_queries;
  visit(query.description, [&](auto element, auto columns) {
    using T = decltype(element);
    using C = Flash1Backward<T, decltype(columns)::value>;
    if (rows > 0)
      flash2_statistics<T><<<static_cast<unsigned>((rows + flash_rows_a_block - 1) / flash_rows_a_block), 32 * flash_rows_a_block,
                             0, stream_of(stream)>>>(p, statistics);
    check_launch("attention.backward");
    launch<C>(flash1_backward<C>, p, grid, stream_of(stream));
  });
}

}  // namespace

const AttentionRow attention_flash1{
    .name = "sm80.attention_flash1", .accepts = accepts, .footprint = footprint, .forward = forward, .backward = backward};

}  // namespace everglow::cuda
