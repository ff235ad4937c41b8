// Bad calls of the linear layer.
#include "ops/bad_calls.hpp"

#include <everglow/linear.hpp>

namespace everglow {
namespace {

/// A plan of 8 inputs, 4 outputs, ReLU, at most 5 rows, with all its tensors.
struct Linear {
  test::Pool pool;
  LinearDescription description{.inputs = 8, .outputs = 4, .activation = Activation::relu, .training = true};
  LinearSizes sizes{5}, prepared{5};
  DeviceDescription device = Device::cpu();
  PlanOptions options;
  LinearPlan plan{description, sizes};
  TensorView x = pool.tensor(DType::f32, {5, 8}), weight = pool.tensor(DType::f32, {4, 8}), bias = pool.tensor(DType::f32, {4});
  TensorView y = pool.tensor(DType::f32, {5, 4}), z = pool.tensor(DType::f32, {5, 4}), dy = pool.tensor(DType::f32, {5, 4});
  LinearForward forward{.x = x, .weight = weight, .bias = bias, .y = y, .preactivation = z};
  LinearBackward backward{.dy = dy,
                          .x = x,
                          .weight = weight,
                          .preactivation = z,
                          .dx = pool.tensor(DType::f32, {5, 8}),
                          .dweight = pool.tensor(DType::f32, {4, 8}),
                          .dbias = pool.tensor(DType::f32, {4})};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  PackedWeights packed{pool.tensor(DType::u8, {static_cast<std::int64_t>(plan.packed_bytes())})};
  Stream stream;

  Linear() {
    for (const TensorView& view : {x, weight, bias, z, dy})
      for (std::int64_t i = 0; i < view.elements(); ++i) static_cast<float*>(view.data)[i] = 1;
  }
  void call(std::string_view where) {
    if (where == "linear.plan") LinearPlan(description, sizes, device, options);
    if (where == "linear.forward") plan.forward(forward, workspace, stream);
    if (where == "linear.backward") plan.backward(backward, workspace, stream);
    if (where == "linear.pack") plan.pack(weight, packed, stream);
    if (where == "linear.prepare") plan.prepare(prepared);
  }
  /// Weights packed for another description, in memory of the right size.
  void pack_for_another() {
    LinearDescription other = description;
    other.activation = Activation::silu;
    LinearPlan(other, sizes).pack(weight, packed);
  }
};

using Entry = test::BadCall<Linear>;
constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;

constexpr Entry plans[] = {
    {"negative inputs", "linear.plan", invalid, "inputs: expected 0 or more, got -1", [](Linear& w) { w.description.inputs = -1; }},
    {"negative outputs", "linear.plan", invalid, "outputs: expected 0 or more, got -4",
     [](Linear& w) { w.description.outputs = -4; }},
    {"negative batch", "linear.plan", invalid, "batch: expected 0 or more, got -5", [](Linear& w) { w.sizes.batch = -5; }},
    {"integer dtype", "linear.plan", mismatch, "dtype: expected f32, f16, bf16 or f64, got i32",
     [](Linear& w) { w.description.dtype = DType::i32; }},
    {"no such activation", "linear.plan", invalid, "activation: expected none, relu, gelu_tanh, gelu_erf or silu, got 9",
     [](Linear& w) { w.description.activation = static_cast<Activation>(9); }},
    {"no such layout", "linear.plan", invalid, "layout: expected outputs_inputs or inputs_outputs, got 5",
     [](Linear& w) { w.description.layout = static_cast<LinearLayout>(5); }},
    {"weights past 2^63", "linear.plan", invalid,
     "inputs x outputs: expected fewer than 2^56 elements, got 4611686018427387904 x 4",
     [](Linear& w) { w.description.inputs = std::int64_t{1} << 62; }},
    {"rows past 2^63", "linear.plan", invalid, "batch x inputs: expected fewer than 2^56 elements, got 4611686018427387904 x 8",
     [](Linear& w) { w.sizes.batch = std::int64_t{1} << 62; }},
    {"negative threads", "linear.plan", invalid, "threads: expected 0 ... 4096, got -2", [](Linear& w) { w.options.threads = -2; }},
    {"too many threads", "linear.plan", invalid, "threads: expected 0 ... 4096, got 1000000000",
     [](Linear& w) { w.options.threads = 1000000000; }},
    {"no such math", "linear.plan", invalid, "math: expected ieee or tf32, got 7",
     [](Linear& w) { w.options.math = static_cast<Math>(7); }},
    {"forced row unknown", "linear.plan", invalid, "force: expected one of", [](Linear& w) { w.options.force = "cpu.lineal"; }},
    {"forced row named", "linear.plan", invalid, "got \"fast\"", [](Linear& w) { w.options.force = "fast"; }},
    {"excluded row unknown", "linear.plan", invalid, "exclude: expected one of", [](Linear& w) { w.options.exclude = {"fast"}; }},
    {"every row excluded", "linear.plan", ErrorCode::unsupported, "cpu.linear: excluded by option",
     [](Linear& w) { w.options.exclude = kernels("linear", DeviceKind::cpu); }},
    {"forced and excluded", "linear.plan", ErrorCode::unsupported, "reference.linear: excluded by option",
     [](Linear& w) { w.options.force = "reference.linear", w.options.exclude = {"reference.linear"}; }},
    {"forced row declines", "linear.plan", ErrorCode::unsupported, "cpu.linear: f64 is served by the reference alone",
     [](Linear& w) { w.options.force = "cpu.linear", w.description.dtype = DType::f64; }},
    {"device not built", "linear.plan", ErrorCode::unsupported, "CUDA not built",
     [](Linear& w) { w.device = DeviceDescription(Device::cuda(0)); }},
};

constexpr Entry forwards[] = {
    {"x not given", "linear.forward", invalid, "x: expected [any, 8] f32 cpu, got not given", [](Linear& w) { w.forward.x = {}; }},
    {"x null", "linear.forward", invalid, "x: expected memory for [5, 8] f32 cpu, got a null pointer",
     [](Linear& w) { w.forward.x.data = nullptr; }},
    {"x of another dtype", "linear.forward", mismatch, "x: expected [any, 8] f32 cpu, got [5, 8] bf16 cpu",
     [](Linear& w) { w.forward.x.dtype = DType::bf16; }},
    {"x elsewhere", "linear.forward", mismatch, "x: expected [any, 8] f32 cpu, got [5, 8] f32 cuda:0",
     [](Linear& w) { w.forward.x.device = Device::cuda(0); }},
    {"x a scalar", "linear.forward", invalid, "x: expected at least one dimension, got a scalar",
     [](Linear& w) { w.forward.x.rank = 0; }},
    {"x of a rank that cannot be", "linear.forward", invalid, "x: expected a rank of at most 6, got 9",
     [](Linear& w) { w.forward.x.rank = 9; }},
    {"x too narrow", "linear.forward", invalid, "x: expected [any, 8] f32 cpu, got [5, 7] f32 cpu",
     [](Linear& w) { w.forward.x.shape[1] = 7; }},
    {"x with too many rows", "linear.forward", invalid, "x: expected at most 5 rows, got 6",
     [](Linear& w) {
       w.forward.x = w.pool.tensor(DType::f32, {6, 8});
     }},
    {"x with a negative size", "linear.forward", invalid, "x: expected sizes of at least 0, got [-2, 8] f32 cpu",
     [](Linear& w) { w.forward.x.shape[0] = -2; }},
    {"x with two negative sizes", "linear.forward", invalid, "x: expected sizes of at least 0, got [-1, -5, 8] f32 cpu",
     [](Linear& w) {
       w.forward.x = w.forward.x.split(0, 1, 5);
       w.forward.x.shape[0] = -1, w.forward.x.shape[1] = -5;
     }},
    {"y with columns in one place", "linear.forward", invalid,
     "y: expected elements that do not overlap, got stride 0 in dimension 1", [](Linear& w) { w.forward.y.strides[1] = 0; }},
    {"x whose rows do not fold", "linear.forward", invalid, "x: expected leading dimensions that fold into one, got stride 24",
     [](Linear& w) {
       TensorView big = w.pool.tensor(DType::f32, {2, 3, 8});
       w.forward.x = big.narrow(1, 0, 2);
     }},
    {"x misaligned", "linear.forward", invalid, "x: expected an address that is a multiple of 4 bytes",
     [](Linear& w) { test::shift(w.forward.x, 2); }},
    {"y not given", "linear.forward", invalid, "y: expected [5, 4] f32 cpu, got not given", [](Linear& w) { w.forward.y = {}; }},
    {"y null", "linear.forward", invalid, "y: expected memory for [5, 4] f32 cpu, got a null pointer",
     [](Linear& w) { w.forward.y.data = nullptr; }},
    {"y with fewer rows than x", "linear.forward", invalid, "y: expected [5, 4] f32 cpu, got [4, 4] f32 cpu",
     [](Linear& w) { w.forward.y.shape[0] = 4; }},
    {"y in f64", "linear.forward", mismatch, "y: expected [5, 4] f32 cpu, got [5, 4] f64 cpu",
     [](Linear& w) { w.forward.y.dtype = DType::f64; }},
    {"y whose rows overlap", "linear.forward", invalid, "y: expected elements that do not overlap, got stride 3 in dimension 0",
     [](Linear& w) { w.forward.y.strides[0] = 3; }},
    {"y over x", "linear.forward", invalid, "y: expected memory apart from x, got an overlap",
     [](Linear& w) { w.forward.y.data = w.x.data; }},
    {"y over the end of the weights", "linear.forward", invalid, "y: expected memory apart from weight, got an overlap",
     [](Linear& w) { w.forward.y.data = static_cast<float*>(w.weight.data) + 31; }},
    {"y over the bias", "linear.forward", invalid, "y: expected memory apart from bias, got an overlap",
     [](Linear& w) { w.forward.bias.data = w.y.data; }},
    {"preactivation missing", "linear.forward", invalid, "preactivation: expected [5, 4] f32 cpu, got not given",
     [](Linear& w) { w.forward.preactivation = {}; }},
    {"preactivation over y", "linear.forward", invalid, "y: expected memory apart from preactivation, got an overlap",
     [](Linear& w) { w.forward.preactivation = w.y; }},
    {"weight missing", "linear.forward", invalid, "weight: expected [4, 8] f32 cpu, got not given",
     [](Linear& w) { w.forward.weight = {}; }},
    {"weight transposed", "linear.forward", invalid, "weight: expected [4, 8] f32 cpu, got [8, 4] f32 cpu",
     [](Linear& w) { w.forward.weight = w.weight.transposed(0, 1); }},
    {"weight of three dimensions", "linear.forward", invalid, "weight: expected [4, 8] f32 cpu, got [2, 2, 8] f32 cpu",
     [](Linear& w) { w.forward.weight = w.weight.split(0, 2, 2); }},
    {"bias too long", "linear.forward", invalid, "bias: expected [4] f32 cpu, got [5] f32 cpu",
     [](Linear& w) { w.forward.bias.shape[0] = 5; }},
    {"packed but never filled", "linear.forward", invalid, "packed.key: expected", [](Linear& w) { w.forward.packed = &w.packed; }},
    {"packed for another description", "linear.forward", invalid, "weights packed by another row or for another description",
     [](Linear& w) { w.pack_for_another(), w.forward.packed = &w.packed; }},
    {"packed bytes too few", "linear.forward", invalid, "packed.bytes: expected at least ",
     [](Linear& w) { --w.packed.bytes.shape[0], w.forward.packed = &w.packed; }},
    {"packed bytes off the cache line", "linear.forward", invalid,
     "packed.bytes: expected an address that is a multiple of 64 bytes",
     [](Linear& w) { w.packed.bytes.data = static_cast<char*>(w.packed.bytes.data) + 8, w.forward.packed = &w.packed; }},
    {"packed where the row has no such form", "linear.forward", ErrorCode::unsupported, "packed: expected none",
     [](Linear& w) {
       w.plan = LinearPlan(w.description, w.sizes, Device::cpu(), {.force = "reference.linear"});
       w.forward.packed = &w.packed;
     }},
    {"stream of another device", "linear.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Linear& w) { w.stream.device = Device::cuda(0); }},
};

constexpr Entry backwards[] = {
    {"plan without training", "linear.backward", invalid, "training: expected a plan made with training = true",
     [](Linear& w) { w.plan = LinearPlan({.inputs = 8, .outputs = 4}, {5}); }},
    {"dy missing", "linear.backward", invalid, "dy: expected [any, 4] f32 cpu, got not given",
     [](Linear& w) { w.backward.dy = {}; }},
    {"dy with too many rows", "linear.backward", invalid, "dy: expected at most 5 rows, got 6",
     [](Linear& w) {
       w.backward.dy = w.pool.tensor(DType::f32, {6, 4});
     }},
    {"x missing for dweight", "linear.backward", invalid, "x: expected [5, 8] f32 cpu, got not given",
     [](Linear& w) { w.backward.x = {}; }},
    {"x with other rows", "linear.backward", invalid, "x: expected [5, 8] f32 cpu, got [3, 8] f32 cpu",
     [](Linear& w) { w.backward.x.shape[0] = 3; }},
    {"weight missing for dx", "linear.backward", invalid, "weight: expected [4, 8] f32 cpu, got not given",
     [](Linear& w) { w.backward.weight = {}; }},
    {"preactivation missing in backward", "linear.backward", invalid, "preactivation: expected [5, 4] f32 cpu, got not given",
     [](Linear& w) { w.backward.preactivation = {}; }},
    {"dx null", "linear.backward", invalid, "dx: expected memory for [5, 8] f32 cpu, got a null pointer",
     [](Linear& w) { w.backward.dx.data = nullptr; }},
    {"dx in f16", "linear.backward", mismatch, "dx: expected [5, 8] f32 cpu, got [5, 8] f16 cpu",
     [](Linear& w) { w.backward.dx.dtype = DType::f16; }},
    {"dx whose rows overlap", "linear.backward", invalid, "dx: expected elements that do not overlap, got stride 0 in dimension 0",
     [](Linear& w) { w.backward.dx.strides[0] = 0; }},
    {"dx over dy", "linear.backward", invalid, "dx: expected memory apart from dy, got an overlap",
     [](Linear& w) { w.backward.dx.data = w.dy.data; }},
    {"dweight in f16", "linear.backward", mismatch, "dweight: expected [4, 8] f32 cpu, got [4, 8] f16 cpu",
     [](Linear& w) { w.backward.dweight.dtype = DType::f16; }},
    {"dweight in f16 beside bf16", "linear.backward", mismatch, "dbias: expected [4] f32 or bf16 cpu, got [4] f16 cpu",
     [](Linear& w) {
       LinearDescription d = w.description;
       d.dtype = DType::bf16, d.activation = Activation::none;
       w.plan = LinearPlan(d, w.sizes);
       w.backward = {.dy = w.pool.tensor(DType::bf16, {5, 4}), .dbias = w.pool.tensor(DType::f16, {4})};
     }},
    {"dweight transposed", "linear.backward", invalid, "dweight: expected [4, 8] f32 cpu, got [8, 4] f32 cpu",
     [](Linear& w) { w.backward.dweight = w.backward.dweight.transposed(0, 1); }},
    {"dweight elsewhere", "linear.backward", mismatch, "dweight: expected [4, 8] f32 cpu, got [4, 8] f32 cuda:1",
     [](Linear& w) { w.backward.dweight.device = Device::cuda(1); }},
    {"dbias too short", "linear.backward", invalid, "dbias: expected [4] f32 cpu, got [3] f32 cpu",
     [](Linear& w) { w.backward.dbias.shape[0] = 3; }},
    {"dbias over dweight", "linear.backward", invalid, "dweight: expected memory apart from dbias, got an overlap",
     [](Linear& w) { w.backward.dbias.data = w.backward.dweight.data; }},
    {"no workspace", "linear.backward", ErrorCode::out_of_memory, "bytes, got 0", [](Linear& w) { w.workspace = {}; }},
    {"workspace too short", "linear.backward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Linear& w) { --w.workspace.bytes; }},
    {"workspace misaligned", "linear.backward", invalid, "workspace: expected an address that is a multiple of 64 bytes",
     [](Linear& w) { w.workspace.data = static_cast<std::byte*>(w.workspace.data) + 4; }},
    {"backward stream of another device", "linear.backward", mismatch, "stream: expected one of cpu, got one of cuda:2",
     [](Linear& w) { w.stream.device = Device::cuda(2); }},
    {"weight to pack missing", "linear.pack", invalid, "weight: expected [4, 8] f32 cpu, got not given",
     [](Linear& w) { w.weight = {}; }},
    {"memory to pack into missing", "linear.pack", invalid, "packed.bytes: expected [", [](Linear& w) { w.packed.bytes = {}; }},
    {"memory to pack into null", "linear.pack", invalid, "got a null pointer", [](Linear& w) { w.packed.bytes.data = nullptr; }},
    {"memory to pack into over the weight", "linear.pack", invalid, "packed.bytes: expected memory apart from weight",
     [](Linear& w) { w.weight.data = w.packed.bytes.data; }},
    {"packing by a row that cannot", "linear.pack", ErrorCode::unsupported, "packed: expected none",
     [](Linear& w) { w.plan = LinearPlan(w.description, w.sizes, Device::cpu(), {.force = "reference.linear"}); }},
};

constexpr Entry preparations[] = {
    {"more rows than the plan's", "linear.prepare", invalid, "batch: expected 0 ... 5, got 6", [](Linear& w) { w.prepared = {6}; }},
    {"rows below none", "linear.prepare", invalid, "batch: expected 0 ... 5, got -1", [](Linear& w) { w.prepared = {-1}; }},
    {"preparing for a device by name", "linear.prepare", ErrorCode::device, "expected a device that is present, got a plan for ",
     [](Linear& w) { w.plan = LinearPlan(w.description, w.sizes, DeviceDescription::named("h200")); }},
};

TEST(BadCalls, LinearPlans_sanitize) { test::expect_bad_calls<Linear>(plans); }
TEST(BadCalls, LinearForward_sanitize) { test::expect_bad_calls<Linear>(forwards); }
TEST(BadCalls, LinearBackwardAndPack_sanitize) { test::expect_bad_calls<Linear>(backwards); }
TEST(BadCalls, LinearPreparation_sanitize) { test::expect_bad_calls<Linear>(preparations); }

}  // namespace
}  // namespace everglow
