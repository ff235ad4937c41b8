// Bad calls of the recurrent layer.
#include "ops/bad_calls.hpp"

#include <everglow/recurrent.hpp>

#include <algorithm>

namespace everglow {
namespace {

/// An LSTM of 4 inputs and 5 hidden units over at most 3 steps of 2 rows with lengths, a reserve that its forward run filled, and a
/// status, which a CPU leaves alone: it throws.
struct Recurrent {
  test::Pool pool;
  RecurrentDescription description{.inputs = 4, .hidden = 5, .training = true, .lengths = true};
  RecurrentSizes sizes{3, 2};
  DeviceDescription device = Device::cpu();
  PlanOptions options;
  RecurrentPlan plan{description, sizes};
  std::vector<RecurrentWeights> weights{{.w_ih = pool.tensor(DType::f32, {20, 4}),
                                         .w_hh = pool.tensor(DType::f32, {20, 5}),
                                         .b_ih = pool.tensor(DType::f32, {20}),
                                         .b_hh = pool.tensor(DType::f32, {20})}};
  std::vector<RecurrentWeightGradients> gradients{{.w_ih = pool.tensor(DType::f32, {20, 4}),
                                                   .w_hh = pool.tensor(DType::f32, {20, 5}),
                                                   .b_ih = pool.tensor(DType::f32, {20}),
                                                   .b_hh = pool.tensor(DType::f32, {20})}};
  TensorView x = pool.tensor(DType::f32, {3, 2, 4}), h0 = state(), c0 = state(), y = pool.tensor(DType::f32, {3, 2, 5});
  TensorView reserve = bytes(plan.reserve_bytes()), lengths = pool.tensor(DType::i32, {2});
  TensorView status = pool.tensor(DType::i32, {1});
  RecurrentForward forward{
      .x = x, .h0 = h0, .c0 = c0, .weights = weights, .y = y, .hn = state(), .cn = state(), .reserve = reserve, .lengths = lengths};
  RecurrentBackward backward{.x = x,
                             .h0 = h0,
                             .c0 = c0,
                             .weights = weights,
                             .y = y,
                             .reserve = reserve,
                             .lengths = lengths,
                             .dy = pool.tensor(DType::f32, {3, 2, 5}),
                             .dhn = state(),
                             .dcn = state(),
                             .dx = pool.tensor(DType::f32, {3, 2, 4}),
                             .dh0 = state(),
                             .dc0 = state(),
                             .dweights = gradients};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  PackedWeights packed{bytes(plan.packed_bytes())};
  Stream stream;

  Recurrent() {
    length(0) = 3, length(1) = 2;
    forward.status = backward.status = status;
    Recurrent::call("recurrent.forward");
    std::memset(y.data, 0xFF, 120);  // so that another run writes again
  }
  TensorView state() { return pool.tensor(DType::f32, {1, 2, 5}); }
  TensorView bytes(std::size_t count) { return pool.tensor(DType::u8, {static_cast<std::int64_t>(count)}); }
  /// The same layer in bf16, but for its biases and the cell state.
  void in_bf16() {
    description.dtype = DType::bf16;
    plan = RecurrentPlan(description, sizes);
    for (ConstTensorView* view : {&forward.x, &forward.h0, &weights[0].w_ih, &weights[0].w_hh}) view->dtype = DType::bf16;
    for (TensorView* view : {&forward.y, &forward.hn}) view->dtype = DType::bf16;
  }
  std::int32_t& length(int row) { return static_cast<std::int32_t*>(lengths.data)[row]; }
  void call(std::string_view where) {
    if (where == "recurrent.plan") RecurrentPlan(description, sizes, device, options);
    if (where == "recurrent.forward") plan.forward(forward, workspace, stream);
    if (where == "recurrent.backward") plan.backward(backward, workspace, stream);
    if (where == "recurrent.pack") plan.pack(weights, packed, stream);
  }
};

using Entry = test::BadCall<Recurrent>;
constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;

constexpr Entry plans[] = {
    {"negative inputs", "recurrent.plan", invalid, "inputs: expected 0 or more, got -1",
     [](Recurrent& w) { w.description.inputs = -1; }},
    {"negative hidden", "recurrent.plan", invalid, "hidden: expected 0 or more, got -5",
     [](Recurrent& w) { w.description.hidden = -5; }},
    {"no layers", "recurrent.plan", invalid, "layers: expected 1 or more, got 0", [](Recurrent& w) { w.description.layers = 0; }},
    {"negative projection", "recurrent.plan", invalid, "projection: expected 0 or more, got -2",
     [](Recurrent& w) { w.description.projection = -2; }},
    {"projection of a gru", "recurrent.plan", invalid, "projection: expected 0 for a cell other than lstm, got 2",
     [](Recurrent& w) { w.description.cell = Cell::gru, w.description.projection = 2; }},
    {"no such cell", "recurrent.plan", invalid, "cell: expected lstm, gru, gru_reset_before, tanh or relu, got 12",
     [](Recurrent& w) { w.description.cell = static_cast<Cell>(12); }},
    {"everything dropped", "recurrent.plan", invalid, "dropout: expected 0 <= dropout < 1, got 1",
     [](Recurrent& w) { w.description.dropout = 1; }},
    {"negative steps", "recurrent.plan", invalid, "steps: expected 0 or more, got -3", [](Recurrent& w) { w.sizes.steps = -3; }},
    {"negative batch", "recurrent.plan", invalid, "batch: expected 0 or more, got -2", [](Recurrent& w) { w.sizes.batch = -2; }},
    {"steps past 2^63", "recurrent.plan", invalid, "steps x batch x inputs: expected fewer than 2^56 elements",
     [](Recurrent& w) { w.sizes.steps = std::int64_t{1} << 61; }},
    {"weights past 2^63", "recurrent.plan", invalid, "gates x hidden x inputs: expected fewer than 2^56 elements",
     [](Recurrent& w) { w.description.hidden = std::int64_t{1} << 40; }},
    {"index dtype", "recurrent.plan", mismatch, "dtype: expected f32, f16, bf16 or f64, got u8",
     [](Recurrent& w) { w.description.dtype = DType::u8; }},
    {"unknown row", "recurrent.plan", invalid, "force: expected one of", [](Recurrent& w) { w.options.force = "cudnn"; }},
    {"negative threads", "recurrent.plan", invalid, "threads: expected 0 ... 4096, got -1",
     [](Recurrent& w) { w.options.threads = -1; }},
    {"device not built", "recurrent.plan", ErrorCode::unsupported, "CUDA not built",
     [](Recurrent& w) { w.device = DeviceDescription(Device::cuda(0)); }},
};

constexpr Entry forwards[] = {
    {"x null", "recurrent.forward", invalid, "x: expected memory for [3, 2, 4] f32 cpu, got a null pointer",
     [](Recurrent& w) { w.forward.x.data = nullptr; }},
    {"x batch first and folded", "recurrent.forward", invalid, "x: expected [any, any, 4] f32 cpu, got [6, 4] f32 cpu",
     [](Recurrent& w) {
       w.forward.x = w.x.reshaped({6, 4});
     }},
    {"x in f64", "recurrent.forward", mismatch, "x: expected [any, any, 4] f32 cpu, got [3, 2, 4] f64 cpu",
     [](Recurrent& w) { w.forward.x.dtype = DType::f64; }},
    {"x elsewhere", "recurrent.forward", mismatch, "got [3, 2, 4] f32 cuda:0",
     [](Recurrent& w) { w.forward.x.device = Device::cuda(0); }},
    {"more steps than the plan", "recurrent.forward", invalid, "x: expected at most 3 steps, got 4",
     [](Recurrent& w) {
       w.forward.x = w.pool.tensor(DType::f32, {4, 2, 4});
     }},
    {"more rows than the plan", "recurrent.forward", invalid, "x: expected at most 2 rows, got 3",
     [](Recurrent& w) {
       w.forward.x = w.pool.tensor(DType::f32, {3, 3, 4});
     }},
    {"a negative number of steps", "recurrent.forward", invalid, "x: expected sizes of at least 0, got [-3, 2, 4] f32 cpu",
     [](Recurrent& w) { w.forward.x.shape[0] = -3; }},
    {"x with inputs apart", "recurrent.forward", invalid, "x: expected a last dimension whose stride is 1, got stride 2",
     [](Recurrent& w) { w.forward.x.strides[2] = 2; }},
    {"h0 of another batch", "recurrent.forward", invalid, "h0: expected [1, 2, 5] f32 cpu, got [1, 1, 5] f32 cpu",
     [](Recurrent& w) { w.forward.h0.shape[1] = 1; }},
    {"h0 for two directions", "recurrent.forward", invalid, "h0: expected [1, 2, 5] f32 cpu, got [2, 2, 5] f32 cpu",
     [](Recurrent& w) {
       w.forward.h0 = w.pool.tensor(DType::f32, {2, 2, 5});
     }},
    {"c0 null", "recurrent.forward", invalid, "c0: expected memory for [1, 2, 5] f32 cpu, got a null pointer",
     [](Recurrent& w) { w.forward.c0.data = nullptr; }},
    {"no weights", "recurrent.forward", invalid, "weights: expected layers x directions = 1 entries, got 0",
     [](Recurrent& w) { w.forward.weights = {}; }},
    {"w_ih missing", "recurrent.forward", invalid, "weights[0].w_ih: expected [20, 4] f32 cpu, got not given",
     [](Recurrent& w) { w.weights[0].w_ih = {}; }},
    {"w_hh of three gates", "recurrent.forward", invalid, "weights[0].w_hh: expected [20, 5] f32 cpu, got [15, 5] f32 cpu",
     [](Recurrent& w) { w.weights[0].w_hh.shape[0] = 15; }},
    {"b_hh in bf16", "recurrent.forward", mismatch, "weights[0].b_hh: expected [20] f32 cpu, got [20] bf16 cpu",
     [](Recurrent& w) { w.weights[0].b_hh.dtype = DType::bf16; }},
    // pytorch#36428, pytorch#45048: under autocast the biases stay f32 beside inputs of 16 bits, and the layer failed deep inside.
    {"b_ih in f32 beside bf16", "recurrent.forward", mismatch, "weights[0].b_ih: expected [20] bf16 cpu, got [20] f32 cpu",
     [](Recurrent& w) { w.in_bf16(); }},
    {"x in bf16 beside f32", "recurrent.forward", mismatch, "x: expected [any, any, 4] f32 cpu, got [3, 2, 4] bf16 cpu",
     [](Recurrent& w) { w.forward.x.dtype = DType::bf16; }},
    {"w_hr without projection", "recurrent.forward", invalid,
     "weights[0].w_hr: expected none without projection, got [2, 5] f32 cpu",
     [](Recurrent& w) {
       w.weights[0].w_hr = w.pool.tensor(DType::f32, {2, 5});
     }},
    {"lengths missing", "recurrent.forward", invalid, "lengths: expected a tensor, as the description says, got not given",
     [](Recurrent& w) { w.forward.lengths = {}; }},
    {"lengths in i64", "recurrent.forward", mismatch, "lengths: expected [2] i32 cpu, got [2] i64 cpu",
     [](Recurrent& w) { w.forward.lengths = w.pool.tensor(DType::i64, {2}); }},
    {"a negative length", "recurrent.forward", invalid, "lengths: expected 0 ... 3 for row 1, got -1",
     [](Recurrent& w) { w.length(1) = -1; }},
    {"a length past the steps", "recurrent.forward", invalid, "lengths: expected 0 ... 3 for row 0, got 4",
     [](Recurrent& w) { w.length(0) = 4; }},
    {"resets without being described", "recurrent.forward", invalid, "resets: expected none, as the description says",
     [](Recurrent& w) {
       w.forward.resets = w.pool.tensor(DType::u8, {3, 2});
     }},
    {"y missing", "recurrent.forward", invalid, "y: expected [3, 2, 5] f32 cpu, got not given",
     [](Recurrent& w) { w.forward.y = {}; }},
    {"y for two directions", "recurrent.forward", invalid, "y: expected [3, 2, 5] f32 cpu, got [3, 2, 10] f32 cpu",
     [](Recurrent& w) {
       w.forward.y = w.pool.tensor(DType::f32, {3, 2, 10});
     }},
    {"y whose rows overlap", "recurrent.forward", invalid, "y: expected elements that do not overlap, got stride 4 in dimension 1",
     [](Recurrent& w) { w.forward.y.strides[1] = 4; }},
    {"y over x", "recurrent.forward", invalid, "y: expected memory apart from x, got an overlap",
     [](Recurrent& w) { w.forward.y.data = w.x.data; }},
    {"hn over h0", "recurrent.forward", invalid, "hn: expected memory apart from h0, got an overlap",
     [](Recurrent& w) { w.forward.hn = w.h0; }},
    {"cn over hn", "recurrent.forward", invalid, "hn: expected memory apart from cn, got an overlap",
     [](Recurrent& w) { w.forward.cn = w.forward.hn; }},
    {"reserve missing", "recurrent.forward", invalid, "reserve: expected [any] u8 cpu, got not given",
     [](Recurrent& w) { w.forward.reserve = {}; }},
    {"reserve too short", "recurrent.forward", invalid, "reserve: expected at least",
     [](Recurrent& w) { --w.forward.reserve.shape[0]; }},
    {"reserve misaligned", "recurrent.forward", invalid, "reserve: expected an address that is a multiple of 64 bytes",
     [](Recurrent& w) { test::shift(w.forward.reserve, 8); }},
    {"status of two words", "recurrent.forward", invalid, "status: expected [1] i32 cpu, got [2] i32 cpu",
     [](Recurrent& w) { w.forward.status = w.pool.tensor(DType::i32, {2}); }},
    {"packed but never filled", "recurrent.forward", invalid, "got key 0", [](Recurrent& w) { w.forward.packed = &w.packed; }},
    {"workspace too short", "recurrent.forward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Recurrent& w) { --w.workspace.bytes; }},
    {"workspace misaligned", "recurrent.forward", invalid, "workspace: expected an address that is a multiple of 64 bytes",
     [](Recurrent& w) { w.workspace.data = static_cast<std::byte*>(w.workspace.data) + 32; }},
    {"stream of another device", "recurrent.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Recurrent& w) { w.stream.device = Device::cuda(0); }},
};

constexpr Entry backwards[] = {
    {"plan without training", "recurrent.backward", invalid, "training: expected a plan made with training = true, got false",
     [](Recurrent& w) { w.plan = RecurrentPlan({.inputs = 4, .hidden = 5, .lengths = true}, w.sizes); }},
    {"y missing in backward", "recurrent.backward", invalid, "y: expected [3, 2, 5] f32 cpu, got not given",
     [](Recurrent& w) { w.backward.y = {}; }},
    {"reserve of no forward", "recurrent.backward", invalid, "reserve: expected what forward of this layer and row wrote",
     [](Recurrent& w) { w.backward.reserve = w.bytes(w.plan.reserve_bytes()); }},
    {"reserve of another row", "recurrent.backward", invalid, "reserve: expected",
     [](Recurrent& w) {
       w.plan = RecurrentPlan(w.description, w.sizes, Device::cpu(), {.force = "reference.recurrent"});
       w.workspace = w.pool.workspace(w.plan.workspace_bytes());
       const TensorView own = w.bytes(w.plan.reserve_bytes());
       std::memcpy(own.data, w.reserve.data, static_cast<std::size_t>(std::min(own.size(0), w.reserve.size(0))));
       w.backward.reserve = own;
     }},
    {"reserve of a longer run", "recurrent.backward", invalid, "with 2 steps and 2 rows, got 3 steps and 2 rows",
     [](Recurrent& w) {
       w.length(0) = 2;
       w.backward.x = w.x.narrow(0, 0, 2), w.backward.dx = w.backward.dx.narrow(0, 0, 2);
       w.backward.y = w.y.narrow(0, 0, 2), w.backward.dy = w.backward.dy.narrow(0, 0, 2);
     }},
    {"h0 given to forward alone", "recurrent.backward", invalid, "h0, c0: expected them given or not as in the forward run",
     [](Recurrent& w) { w.backward.h0 = {}; }},
    {"dy of another width", "recurrent.backward", invalid, "dy: expected [3, 2, 5] f32 cpu, got [3, 2, 4] f32 cpu",
     [](Recurrent& w) { w.backward.dy.shape[2] = 4; }},
    {"dhn null", "recurrent.backward", invalid, "dhn: expected memory for [1, 2, 5] f32 cpu, got a null pointer",
     [](Recurrent& w) { w.backward.dhn.data = nullptr; }},
    {"dcn in f16", "recurrent.backward", mismatch, "dcn: expected [1, 2, 5] f32 cpu, got [1, 2, 5] f16 cpu",
     [](Recurrent& w) { w.backward.dcn.dtype = DType::f16; }},
    {"dx over x", "recurrent.backward", invalid, "dx: expected memory apart from x, got an overlap",
     [](Recurrent& w) { w.backward.dx = w.x; }},
    {"dx repeated over the steps", "recurrent.backward", invalid,
     "dx: expected elements that do not overlap, got stride 0 in dimension 0", [](Recurrent& w) { w.backward.dx.strides[0] = 0; }},
    {"dh0 over dc0", "recurrent.backward", invalid, "dh0: expected memory apart from dc0, got an overlap",
     [](Recurrent& w) { w.backward.dh0 = w.backward.dc0; }},
    {"too many entries of dweights", "recurrent.backward", invalid, "dweights: expected layers x directions = 1 entries, got 2",
     [](Recurrent& w) {
       w.gradients.push_back(w.gradients[0]);
       w.backward.dweights = w.gradients;
     }},
    {"dw_hh of a wrong shape", "recurrent.backward", invalid, "dweights[0].w_hh: expected [20, 5] f32 cpu, got [20, 4] f32 cpu",
     [](Recurrent& w) { w.gradients[0].w_hh.shape[1] = 4; }},
    {"db_ih in i32", "recurrent.backward", mismatch, "dweights[0].b_ih: expected [20] f32 cpu, got [20] i32 cpu",
     [](Recurrent& w) { w.gradients[0].b_ih.dtype = DType::i32; }},
    {"db_ih over db_hh", "recurrent.backward", invalid, "dweights[0].b_ih: expected memory apart from dweights[0].b_hh",
     [](Recurrent& w) { w.gradients[0].b_ih = w.gradients[0].b_hh; }},
    {"a length past the steps in backward", "recurrent.backward", invalid, "lengths: expected 0 ... 3 for row 1, got 2147483647",
     [](Recurrent& w) { w.length(1) = 2147483647; }},
    {"no workspace", "recurrent.backward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Recurrent& w) { w.workspace = {}; }},
    {"weights to pack missing", "recurrent.pack", invalid, "weights[0].w_hh: expected [20, 5] f32 cpu, got not given",
     [](Recurrent& w) { w.weights[0].w_hh = {}; }},
    {"memory to pack into too short", "recurrent.pack", invalid, "packed: expected at least",
     [](Recurrent& w) { --w.packed.bytes.shape[0]; }},
    {"memory to pack into over a weight", "recurrent.pack", invalid, "packed: expected memory apart from weights[0].w_ih",
     [](Recurrent& w) { w.weights[0].w_ih.data = w.packed.bytes.data; }},
};

TEST(BadCalls, RecurrentPlans_sanitize) { test::expect_bad_calls<Recurrent>(plans); }
TEST(BadCalls, RecurrentForward_sanitize) { test::expect_bad_calls<Recurrent>(forwards); }
TEST(BadCalls, RecurrentBackwardAndPack_sanitize) { test::expect_bad_calls<Recurrent>(backwards); }

}  // namespace
}  // namespace everglow
