// Bad calls of the attention layer.
#include "ops/bad_calls.hpp"

#include <everglow/attention.hpp>

#include <limits>

namespace everglow {
namespace {

/// Four query heads on two key heads of 8, at most 2 rows of 3 queries and 5 keys, with key lengths, a bias and ALiBi slopes, and
/// a status, which a CPU leaves alone: it throws.
struct Attention {
  test::Pool pool;
  AttentionDescription description{
      .heads = 4, .kv_heads = 2, .head_dim = 8, .alibi = true, .bias = true, .key_lengths = true, .training = true};
  AttentionSizes sizes{.batch = 2, .queries = 3, .keys = 5};
  DeviceDescription device = Device::cpu();
  PlanOptions options{.threads = 2};  // a workspace that fits the pool on any machine
  AttentionPlan plan{description, sizes, device, options};
  TensorView q = queries(), k = keys(), v = keys(), o = queries(), lse = pool.tensor(DType::f32, {2, 4, 3});
  TensorView lengths = pool.tensor(DType::i32, {2}), slopes = pool.tensor(DType::f32, {4});
  TensorView bias = pool.tensor(DType::f32, {1, 4, 3, 5}), status = pool.tensor(DType::i32, {1});
  AttentionForward forward{
      .q = q, .k = k, .v = v, .o = o, .lse = lse, .key_lengths = lengths, .alibi_slopes = slopes, .bias = bias, .status = status};
  AttentionBackward backward{.q = q,
                             .k = k,
                             .v = v,
                             .o = o,
                             .lse = lse,
                             .key_lengths = lengths,
                             .alibi_slopes = slopes,
                             .bias = bias,
                             .d_o = queries(),
                             .dlse = pool.tensor(DType::f32, {2, 4, 3}),
                             .dq = queries(),
                             .dk = keys(),
                             .dv = keys(),
                             .dbias = pool.tensor(DType::f32, {1, 4, 3, 5}),
                             .status = status};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  Stream stream;

  TensorView queries() { return pool.tensor(DType::f32, {2, 3, 4, 8}); }
  TensorView keys() { return pool.tensor(DType::f32, {2, 5, 2, 8}); }
  /// The same layer in bf16, but for the bias.
  void in_bf16() {
    description.dtype = DType::bf16;
    plan = AttentionPlan(description, sizes, device, options);
    for (ConstTensorView* view : {&forward.q, &forward.k, &forward.v}) view->dtype = DType::bf16;
    forward.o.dtype = DType::bf16;
  }
  std::int32_t& length(int row) { return static_cast<std::int32_t*>(lengths.data)[row]; }
  void call(std::string_view where) {
    if (where == "attention.plan") AttentionPlan(description, sizes, device, options);
    if (where == "attention.forward") plan.forward(forward, workspace, stream);
    if (where == "attention.backward") plan.backward(backward, workspace, stream);
  }
};

using Entry = test::BadCall<Attention>;
constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;

constexpr Entry plans[] = {
    {"negative heads", "attention.plan", invalid, "heads: expected 0 or more, got -4",
     [](Attention& w) { w.description.heads = -4; }},
    {"kv_heads that do not divide", "attention.plan", invalid, "kv_heads: expected a divisor of 4 heads, got 3",
     [](Attention& w) { w.description.kv_heads = 3; }},
    {"more kv_heads than heads", "attention.plan", invalid, "kv_heads: expected a divisor of 4 heads, got 8",
     [](Attention& w) { w.description.kv_heads = 8; }},
    {"negative kv_heads", "attention.plan", invalid, "kv_heads: expected 0 or more, got -2",
     [](Attention& w) { w.description.kv_heads = -2; }},
    {"negative head_dim", "attention.plan", invalid, "head_dim: expected 0 or more, got -8",
     [](Attention& w) { w.description.head_dim = -8; }},
    {"negative value_dim", "attention.plan", invalid, "value_dim: expected 0 or more, got -8",
     [](Attention& w) { w.description.value_dim = -8; }},
    {"scale not a number", "attention.plan", invalid, "scale: expected a finite number, got nan",
     [](Attention& w) { w.description.scale = std::numeric_limits<float>::quiet_NaN(); }},
    {"negative softcap", "attention.plan", invalid, "softcap: expected 0 or a positive number, got -1",
     [](Attention& w) { w.description.softcap = -1; }},
    {"everything dropped", "attention.plan", invalid, "dropout: expected 0 or more and less than 1, got 1",
     [](Attention& w) { w.description.dropout = 1; }},
    {"window below -1", "attention.plan", invalid, "window_left: expected -1 or more, got -2",
     [](Attention& w) { w.description.window_left = -2; }},
    {"right window below -1", "attention.plan", invalid, "window_right: expected -1 or more, got -7",
     [](Attention& w) { w.description.window_right = -7; }},
    {"no such alignment", "attention.plan", invalid, "alignment: expected bottom_right or top_left, got 4",
     [](Attention& w) { w.description.alignment = static_cast<CausalAlignment>(4); }},
    {"negative queries", "attention.plan", invalid, "queries: expected 0 or more, got -3",
     [](Attention& w) { w.sizes.queries = -3; }},
    {"negative keys", "attention.plan", invalid, "keys: expected 0 or more, got -5", [](Attention& w) { w.sizes.keys = -5; }},
    {"totals of a batch that is not packed", "attention.plan", invalid,
     "total_queries and total_keys: expected 0 where the batch is not packed, got 6 and 0",
     [](Attention& w) { w.sizes.total_queries = 6; }},
    {"scores past 2^63", "attention.plan", invalid, "batch x heads x queries x keys: expected fewer than 2^56 elements",
     [](Attention& w) { w.sizes.queries = w.sizes.keys = std::int64_t{1} << 31; }},
    {"index dtype", "attention.plan", mismatch, "dtype: expected f32, f16, bf16 or f64, got i64",
     [](Attention& w) { w.description.dtype = DType::i64; }},
    {"unknown row", "attention.plan", invalid, "exclude: expected one of", [](Attention& w) { w.options.exclude = {"flash3"}; }},
    {"device not built", "attention.plan", ErrorCode::unsupported, "CUDA not built",
     [](Attention& w) { w.device = DeviceDescription(Device::cuda(0)); }},
};

constexpr Entry forwards[] = {
    {"q missing", "attention.forward", invalid, "q: expected [any, any, 4, 8] f32 cpu, got not given",
     [](Attention& w) { w.forward.q = {}; }},
    {"q null", "attention.forward", invalid, "q: expected memory for [2, 3, 4, 8] f32 cpu, got a null pointer",
     [](Attention& w) { w.forward.q.data = nullptr; }},
    {"q of three dimensions", "attention.forward", invalid, "q: expected [any, any, 4, 8] f32 cpu, got [6, 4, 8] f32 cpu",
     [](Attention& w) {
       w.forward.q = w.q.reshaped({6, 4, 8});
     }},
    {"q heads first", "attention.forward", invalid, "q: expected [any, any, 4, 8] f32 cpu, got [2, 4, 3, 8] f32 cpu",
     [](Attention& w) { w.forward.q = w.q.transposed(1, 2); }},
    {"q with elements apart", "attention.forward", invalid, "q: expected a last dimension whose stride is 1, got stride 2",
     [](Attention& w) { w.forward.q.strides[3] = 2; }},
    {"q with a negative size", "attention.forward", invalid, "q: expected sizes of at least 0, got [2, -3, 4, 8] f32 cpu",
     [](Attention& w) { w.forward.q.shape[1] = -3; }},
    {"too many queries", "attention.forward", invalid, "q: expected at most 3 queries, got 4",
     [](Attention& w) {
       w.forward.q = w.pool.tensor(DType::f32, {2, 4, 4, 8});
     }},
    {"k in bf16", "attention.forward", mismatch, "k: expected [2, any, 2, 8] f32 cpu, got [2, 5, 2, 8] bf16 cpu",
     [](Attention& w) { w.forward.k.dtype = DType::bf16; }},
    {"k elsewhere", "attention.forward", mismatch, "k: expected [2, any, 2, 8] f32 cpu, got [2, 5, 2, 8] f32 cuda:3",
     [](Attention& w) { w.forward.k.device = Device::cuda(3); }},
    {"k of another batch", "attention.forward", invalid, "k: expected [2, any, 2, 8] f32 cpu, got [1, 5, 2, 8] f32 cpu",
     [](Attention& w) { w.forward.k.shape[0] = 1; }},
    {"k with as many heads as q", "attention.forward", invalid, "k: expected [2, any, 2, 8] f32 cpu, got [2, 3, 4, 8] f32 cpu",
     [](Attention& w) { w.forward.k = w.q; }},
    {"too many keys", "attention.forward", invalid, "k: expected at most 5 keys, got 6",
     [](Attention& w) {
       w.forward.k = w.forward.v = w.pool.tensor(DType::f32, {2, 6, 2, 8});
     }},
    {"v of fewer keys", "attention.forward", invalid, "v: expected [2, 5, 2, 8] f32 cpu, got [2, 4, 2, 8] f32 cpu",
     [](Attention& w) { w.forward.v.shape[1] = 4; }},
    {"o missing", "attention.forward", invalid, "o: expected [2, 3, 4, 8] f32 cpu, got not given",
     [](Attention& w) { w.forward.o = {}; }},
    {"o whose heads overlap", "attention.forward", invalid, "o: expected elements that do not overlap, got stride 7 in dimension 2",
     [](Attention& w) { w.forward.o.strides[2] = 7; }},
    {"o over q", "attention.forward", invalid, "o: expected memory apart from q, got an overlap",
     [](Attention& w) { w.forward.o = w.q; }},
    {"lse missing in training", "attention.forward", invalid, "lse: expected [2, 4, 3] f32 cpu, got not given",
     [](Attention& w) { w.forward.lse = {}; }},
    {"lse queries before heads", "attention.forward", invalid, "lse: expected [2, 4, 3] f32 cpu, got [2, 3, 4] f32 cpu",
     [](Attention& w) { w.forward.lse = w.lse.transposed(1, 2); }},
    {"lse over the bias", "attention.forward", invalid, "lse: expected memory apart from bias, got an overlap",
     [](Attention& w) { w.forward.lse.data = w.bias.data; }},
    {"key lengths missing", "attention.forward", invalid, "key_lengths: expected [2] i32 cpu, got not given",
     [](Attention& w) { w.forward.key_lengths = {}; }},
    {"a negative key length", "attention.forward", invalid, "key_lengths: expected 0 to 5 in row 1, got -1",
     [](Attention& w) { w.length(1) = -1; }},
    {"a key length past the keys", "attention.forward", invalid, "key_lengths: expected 0 to 5 in row 0, got 6",
     [](Attention& w) { w.length(0) = 6; }},
    {"key lengths in i64", "attention.forward", mismatch, "key_lengths: expected [2] i32 cpu, got [2] i64 cpu",
     [](Attention& w) { w.forward.key_lengths = w.pool.tensor(DType::i64, {2}); }},
    {"query lengths not described", "attention.forward", invalid, "query_lengths: expected none",
     [](Attention& w) { w.forward.query_lengths = w.lengths; }},
    {"cu_keys of a batch that is not packed", "attention.forward", invalid, "cu_keys: expected none",
     [](Attention& w) { w.forward.cu_keys = w.pool.tensor(DType::i32, {3}); }},
    {"slopes missing", "attention.forward", invalid, "alibi_slopes: expected [2, 4] f32 cpu, got not given",
     [](Attention& w) { w.forward.alibi_slopes = {}; }},
    {"a slope too few", "attention.forward", invalid, "alibi_slopes: expected [4] f32 cpu, got [3] f32 cpu",
     [](Attention& w) { w.forward.alibi_slopes.shape[0] = 3; }},
    {"bias of other keys", "attention.forward", invalid, "bias: expected [1, 4, 3, 5] f32 cpu, got [1, 4, 3, 4] f32 cpu",
     [](Attention& w) { w.forward.bias.shape[3] = 4; }},
    {"bias of two dimensions", "attention.forward", invalid, "bias: expected [2, 4, 3, 5] f32 cpu, got [3, 5] f32 cpu",
     [](Attention& w) {
       w.forward.bias = w.pool.tensor(DType::f32, {3, 5});
     }},
    {"bias in bf16 beside f32", "attention.forward", mismatch, "bias: expected [1, 4, 3, 5] f32 cpu, got [1, 4, 3, 5] bf16 cpu",
     [](Attention& w) { w.forward.bias.dtype = DType::bf16; }},
    {"bias in f32 beside bf16", "attention.forward", mismatch, "bias: expected [1, 4, 3, 5] bf16 cpu, got [1, 4, 3, 5] f32 cpu",
     [](Attention& w) { w.in_bf16(); }},
    {"status over lse", "attention.forward", invalid, "lse: expected memory apart from status, got an overlap",
     [](Attention& w) { w.forward.status.data = w.lse.data; }},
    {"status in f32", "attention.forward", mismatch, "status: expected [1] i32 cpu, got [1] f32 cpu",
     [](Attention& w) { w.forward.status = w.pool.tensor(DType::f32, {1}); }},
    {"workspace too short", "attention.forward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Attention& w) { w.workspace.bytes = 0; }},
    {"workspace misaligned", "attention.forward", invalid, "workspace: expected an address that is a multiple of 64 bytes",
     [](Attention& w) { w.workspace.data = static_cast<std::byte*>(w.workspace.data) + 16; }},
    {"stream of another device", "attention.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Attention& w) { w.stream.device = Device::cuda(0); }},
};

constexpr Entry backwards[] = {
    {"plan without training", "attention.backward", invalid, "expected a description with training, got one without",
     [](Attention& w) {
       w.description.training = false;
       w.plan = AttentionPlan(w.description, w.sizes, w.device, w.options);
     }},
    {"o missing in backward", "attention.backward", invalid, "o: expected [2, 3, 4, 8] f32 cpu, got not given",
     [](Attention& w) { w.backward.o = {}; }},
    {"lse missing in backward", "attention.backward", invalid, "lse: expected [2, 4, 3] f32 cpu, got not given",
     [](Attention& w) { w.backward.lse = {}; }},
    {"d_o null", "attention.backward", invalid, "d_o: expected memory for [2, 3, 4, 8] f32 cpu, got a null pointer",
     [](Attention& w) { w.backward.d_o.data = nullptr; }},
    {"dlse in f64", "attention.backward", mismatch, "dlse: expected [2, 4, 3] f32 cpu, got [2, 4, 3] f64 cpu",
     [](Attention& w) { w.backward.dlse.dtype = DType::f64; }},
    {"dq with fewer queries", "attention.backward", invalid, "dq: expected [2, 3, 4, 8] f32 cpu, got [2, 2, 4, 8] f32 cpu",
     [](Attention& w) { w.backward.dq.shape[1] = 2; }},
    {"dk for every query head", "attention.backward", invalid, "dk: expected [2, 5, 2, 8] f32 cpu, got [2, 3, 4, 8] f32 cpu",
     [](Attention& w) { w.backward.dk = w.queries(); }},
    {"dv repeated over the batch", "attention.backward", invalid,
     "dv: expected elements that do not overlap, got stride 0 in dimension 0", [](Attention& w) { w.backward.dv.strides[0] = 0; }},
    {"dk over dv", "attention.backward", invalid, "dk: expected memory apart from dv, got an overlap",
     [](Attention& w) { w.backward.dk = w.backward.dv; }},
    {"dq over q", "attention.backward", invalid, "dq: expected memory apart from q, got an overlap",
     [](Attention& w) { w.backward.dq = w.q; }},
    {"dbias broadcast otherwise than the bias", "attention.backward", invalid,
     "dbias: expected the shape of bias, got [1, 1, 3, 5]",
     [](Attention& w) {
       w.backward.dbias = w.pool.tensor(DType::f32, {1, 1, 3, 5});
     }},
    {"a key length past the keys in backward", "attention.backward", invalid, "key_lengths: expected 0 to 5 in row 1, got 9",
     [](Attention& w) { w.length(1) = 9; }},
    {"no workspace", "attention.backward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Attention& w) { w.workspace = {}; }},
};

TEST(BadCalls, AttentionPlans_sanitize) { test::expect_bad_calls<Attention>(plans); }
TEST(BadCalls, AttentionForward_sanitize) { test::expect_bad_calls<Attention>(forwards); }
TEST(BadCalls, AttentionBackward_sanitize) { test::expect_bad_calls<Attention>(backwards); }

}  // namespace
}  // namespace everglow
