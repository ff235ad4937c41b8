// Bad calls of the elementwise operations and of Adam.
#include "ops/bad_calls.hpp"

#include <everglow/optimizer.hpp>
#include <everglow/pointwise.hpp>

#include <limits>

namespace everglow {
namespace {

constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;

/// y = a + b on three rows of four.
struct Elementwise {
  test::Pool pool;
  PointwiseDescription description{.operation = Pointwise::add};
  PointwiseSizes sizes{12};
  PlanOptions options;
  PointwisePlan plan{description, sizes};
  TensorView a = pool.tensor(DType::f32, {3, 4}), b = pool.tensor(DType::f32, {3, 4}), y = pool.tensor(DType::f32, {3, 4});
  TensorView seed = pool.tensor(DType::i64, {2});
  PointwiseRun tensors{.a = a, .b = b, .y = y};
  Stream stream;

  Elementwise() { std::memset(a.data, 0, 48), std::memset(b.data, 0, 48); }
  void make(const PointwiseDescription& other) { plan = PointwisePlan(other, sizes); }
  void drop() { make({.operation = Pointwise::dropout, .dropout = 0.5F}); }
  void call(std::string_view where) {
    if (where == "pointwise.plan") PointwisePlan(description, sizes, Device::cpu(), options);
    if (where == "pointwise.run") plan.run(tensors, {}, stream);
  }
};

constexpr test::BadCall<Elementwise> elementwise[] = {
    {"no such operation", "pointwise.plan", invalid, "operation: expected copy ... activation_gradient, got 20",
     [](Elementwise& w) { w.description.operation = static_cast<Pointwise>(20); }},
    {"no such activation", "pointwise.plan", invalid, "activation: expected none, relu, gelu_tanh, gelu_erf or silu, got 8",
     [](Elementwise& w) { w.description = {.operation = Pointwise::activation, .activation = static_cast<Activation>(8)}; }},
    {"negative elements", "pointwise.plan", invalid, "elements: expected 0 or more, got -12",
     [](Elementwise& w) { w.sizes.elements = -12; }},
    {"elements past 2^56", "pointwise.plan", invalid, "elements: expected fewer than 2^56 elements",
     [](Elementwise& w) { w.sizes.elements = std::int64_t{1} << 60; }},
    {"a dropout above 1", "pointwise.plan", invalid, "dropout: expected 0 ... 1, got 2",
     [](Elementwise& w) { w.description = {.operation = Pointwise::dropout, .dropout = 2}; }},
    {"a dropout without dropping", "pointwise.plan", invalid, "dropout: expected 0 for an operation that drops nothing, got 0.5",
     [](Elementwise& w) { w.description.dropout = 0.5F; }},
    {"a factor without scaling", "pointwise.plan", invalid, "factor: expected 1 for an operation other than scale and fill, got 3",
     [](Elementwise& w) { w.description.factor = 3; }},
    {"an activation without activating", "pointwise.plan", invalid, "activation: expected none for an operation that applies none",
     [](Elementwise& w) { w.description.activation = Activation::relu; }},
    {"index dtype", "pointwise.plan", mismatch, "dtype: expected f32, f16, bf16 or f64, got i32",
     [](Elementwise& w) { w.description.dtype = DType::i32; }},
    {"unknown row", "pointwise.plan", invalid, "exclude: expected one of", [](Elementwise& w) { w.options.exclude = {"gpu"}; }},
    {"y missing", "pointwise.run", invalid, "y: expected a tensor, got not given", [](Elementwise& w) { w.tensors.y = {}; }},
    {"y null", "pointwise.run", invalid, "y: expected memory for [3, 4] f32 cpu, got a null pointer",
     [](Elementwise& w) { w.tensors.y.data = nullptr; }},
    {"y in f16", "pointwise.run", mismatch, "y: expected [3, 4] f32 cpu, got [3, 4] f16 cpu",
     [](Elementwise& w) { w.tensors.y.dtype = DType::f16; }},
    {"more elements than the plan", "pointwise.run", invalid, "y: expected at most 12 elements, got [4, 4] f32 cpu",
     [](Elementwise& w) {
       w.tensors.a = w.tensors.b = w.tensors.y = w.pool.tensor(DType::f32, {4, 4});
     }},
    {"y with negative sizes", "pointwise.run", invalid, "y: expected sizes of at least 0, got [-3, -4] f32 cpu",
     [](Elementwise& w) { w.tensors.y.shape[0] = -3, w.tensors.y.shape[1] = -4; }},
    {"y repeated", "pointwise.run", invalid, "y: expected elements that do not overlap, got stride 0 in dimension 0",
     [](Elementwise& w) { w.tensors.y.strides[0] = 0; }},
    {"a of another shape", "pointwise.run", invalid, "a: expected [3, 4] f32 cpu, got [4, 3] f32 cpu",
     [](Elementwise& w) { w.tensors.a = w.a.transposed(0, 1); }},
    {"a in bf16 beside f32", "pointwise.run", mismatch, "a: expected [3, 4] f32 cpu, got [3, 4] bf16 cpu",
     [](Elementwise& w) { w.tensors.a.dtype = DType::bf16; }},
    {"a copied from i32", "pointwise.run", mismatch, "a: expected [3, 4] f32 cpu, got [3, 4] i32 cpu",
     [](Elementwise& w) {
       w.make({.operation = Pointwise::copy});
       w.tensors.a.dtype = DType::i32, w.tensors.b = {};
     }},
    {"b missing", "pointwise.run", invalid, "b: expected [3, 4] f32 cpu, got not given", [](Elementwise& w) { w.tensors.b = {}; }},
    {"b elsewhere", "pointwise.run", mismatch, "b: expected [3, 4] f32 cpu, got [3, 4] f32 cuda:0",
     [](Elementwise& w) { w.tensors.b.device = Device::cuda(0); }},
    {"b where the operation takes one", "pointwise.run", invalid, "b: expected none for this operation, got [3, 4] f32 cpu",
     [](Elementwise& w) { w.make({.operation = Pointwise::scale, .factor = 2}); }},
    {"a where the operation takes none", "pointwise.run", invalid, "a: expected none for fill, got [3, 4] f32 cpu",
     [](Elementwise& w) {
       w.make({.operation = Pointwise::fill, .factor = 2});
       w.tensors.b = {};
     }},
    {"y one element after a", "pointwise.run", invalid, "y: expected memory apart from a, got an overlap",
     [](Elementwise& w) { w.tensors.y.data = static_cast<float*>(w.a.data) + 1; }},
    {"y in the place of b transposed", "pointwise.run", invalid, "y: expected memory apart from b, got an overlap",
     [](Elementwise& w) {
       w.tensors.b = w.y;
       w.tensors.b.strides[0] = 1, w.tensors.b.strides[1] = 3;
     }},
    {"a seed without dropping", "pointwise.run", invalid,
     "dropout_seed, dropout_offset: expected 0 for an operation that drops nothing, got 3 and 0",
     [](Elementwise& w) { w.tensors.dropout_seed = 3; }},
    {"a seed in memory without dropping", "pointwise.run", invalid,
     "dropout_state: expected none for an operation that drops nothing, got [2] i64 cpu",
     [](Elementwise& w) { w.tensors.dropout_state = w.seed; }},
    {"a seed in memory beside a number", "pointwise.run", invalid,
     "dropout_seed, dropout_offset: expected 0 beside a dropout_state, got 3 and 0",
     [](Elementwise& w) {
       w.drop();
       w.tensors.dropout_seed = 3, w.tensors.dropout_state = w.seed;
     }},
    {"a seed in memory of another dtype", "pointwise.run", mismatch, "dropout_state: expected [2] i64 cpu, got [2] i32 cpu",
     [](Elementwise& w) {
       w.drop();
       w.tensors.dropout_state = w.seed;
       w.tensors.dropout_state.dtype = DType::i32;
     }},
    {"y over the seed in memory", "pointwise.run", invalid, "y: expected memory apart from dropout_state, got an overlap",
     [](Elementwise& w) {
       w.drop();
       w.tensors.dropout_state = w.seed;
       w.tensors.dropout_state.data = w.y.data;
     }},
    {"stream of another device", "pointwise.run", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Elementwise& w) { w.stream.device = Device::cuda(0); }},
};

/// Two parameters, the first with a bf16 copy.
struct Adam {
  test::Pool pool;
  AdamDescription description{.clip = 1};
  AdamSizes sizes{18, 2};
  AdamPlan plan{description, sizes};
  std::vector<AdamTensor> list{{.parameter = zeros({3, 4}),
                                .gradient = zeros({3, 4}),
                                .m = zeros({3, 4}),
                                .v = zeros({3, 4}),
                                .copy = pool.tensor(DType::bf16, {3, 4})},
                               {.parameter = zeros({6}), .gradient = zeros({6}), .m = zeros({6}), .v = zeros({6})}};
  AdamStep tensors{.tensors = list,
                   .step = pool.tensor(DType::i64, {1}),
                   .rate = zeros({1}),
                   .scale = pool.tensor(DType::f32, {1}),
                   .norm = pool.tensor(DType::f32, {1}),
                   .overflow = pool.tensor(DType::i32, {1})};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  Stream stream;

  TensorView zeros(std::initializer_list<std::int64_t> shape) {
    const TensorView view = pool.tensor(DType::f32, shape);
    std::memset(view.data, 0, static_cast<std::size_t>(view.elements()) * sizeof(float));
    return view;
  }
  void call(std::string_view where) {
    if (where == "adam.plan") AdamPlan(description, sizes);
    if (where == "adam.step") plan.step(tensors, workspace, stream);
  }
};

constexpr test::BadCall<Adam> adams[] = {
    {"beta1 of 1", "adam.plan", invalid, "beta1: expected at least 0 and below 1, got 1", [](Adam& w) { w.description.beta1 = 1; }},
    {"negative beta2", "adam.plan", invalid, "beta2: expected at least 0 and below 1, got -0.5",
     [](Adam& w) { w.description.beta2 = -0.5F; }},
    {"beta2 not a number", "adam.plan", invalid, "beta2: expected at least 0 and below 1, got nan",
     [](Adam& w) { w.description.beta2 = std::numeric_limits<float>::quiet_NaN(); }},
    {"negative epsilon", "adam.plan", invalid, "epsilon: expected 0 or more, got -1", [](Adam& w) { w.description.epsilon = -1; }},
    {"infinite decay", "adam.plan", invalid, "weight_decay: expected 0 or more, got inf",
     [](Adam& w) { w.description.weight_decay = std::numeric_limits<float>::infinity(); }},
    {"negative clip", "adam.plan", invalid, "clip: expected 0 or more, got -1", [](Adam& w) { w.description.clip = -1; }},
    {"no step before the scale grows", "adam.plan", invalid, "scale_interval: expected 1 ... 2^24, which an f32 can count, got 0",
     [](Adam& w) { w.description.scale_interval = 0; }},
    {"two scales", "adam.step", invalid, "scale: expected none beside a scaler, got [1] f32 cpu",
     [](Adam& w) { w.tensors.scaler = w.zeros({3}); }},
    {"a scaler without overflow", "adam.step", invalid, "overflow: expected a tensor beside a scaler, got none",
     [](Adam& w) { w.tensors.scaler = w.zeros({3}), w.tensors.scale = {}, w.tensors.overflow = {}; }},
    {"a scaler of another shape", "adam.step", invalid, "scaler: expected [3] f32 cpu, got [2] f32 cpu",
     [](Adam& w) { w.tensors.scaler = w.zeros({2}); }},
    {"several rates without a scaler", "adam.step", invalid, "rate: expected [1] f32 cpu, got [2] f32 cpu",
     [](Adam& w) { w.tensors.rate = w.zeros({2}); }},
    {"negative parameters", "adam.plan", invalid, "parameters: expected 0 or more, got -18",
     [](Adam& w) { w.sizes.parameters = -18; }},
    {"negative tensors", "adam.plan", invalid, "tensors: expected 0 or more, got -2", [](Adam& w) { w.sizes.tensors = -2; }},
    {"parameters past 2^56", "adam.plan", invalid, "parameters: expected fewer than 2^56 elements",
     [](Adam& w) { w.sizes.parameters = std::numeric_limits<std::int64_t>::max(); }},
    {"more tensors than the plan", "adam.step", invalid, "tensors: expected at most 2, got 3",
     [](Adam& w) {
       w.list.push_back(w.list[1]);
       w.tensors.tensors = w.list;
     }},
    {"more parameters than the plan", "adam.step", invalid, "tensors: expected at most 17 parameters, got 18",
     [](Adam& w) {
       w.plan = AdamPlan(w.description, {17, 2});
     }},
    {"parameter missing", "adam.step", invalid, "tensors[0].parameter: expected a tensor on cpu, got not given",
     [](Adam& w) { w.list[0].parameter = {}; }},
    {"parameter null", "adam.step", invalid, "tensors[1].parameter: expected memory for [6] f32 cpu, got a null pointer",
     [](Adam& w) { w.list[1].parameter.data = nullptr; }},
    {"parameter elsewhere", "adam.step", mismatch, "tensors[0].parameter: expected [3, 4] f32 cpu, got [3, 4] f32 cuda:0",
     [](Adam& w) { w.list[0].parameter.device = Device::cuda(0); }},
    {"parameter in bf16", "adam.step", mismatch, "tensors[0].parameter: expected [3, 4] f32 cpu, got [3, 4] bf16 cpu",
     [](Adam& w) { w.list[0].parameter.dtype = DType::bf16; }},
    {"parameter with gaps", "adam.step", invalid, "tensors[0].parameter: expected a dense tensor, got gaps in [3, 3] f32 cpu",
     [](Adam& w) { w.list[0].parameter.shape[1] = 3; }},
    {"gradient missing", "adam.step", invalid, "tensors[0].gradient: expected [3, 4] f32 cpu, got not given",
     [](Adam& w) { w.list[0].gradient = {}; }},
    {"gradient transposed", "adam.step", invalid, "tensors[0].gradient: expected [3, 4] f32 cpu, got [4, 3] f32 cpu",
     [](Adam& w) { w.list[0].gradient = w.list[0].gradient.transposed(0, 1); }},
    {"gradient elsewhere", "adam.step", mismatch, "tensors[1].gradient: expected [6] f32 cpu, got [6] f32 cuda:0",
     [](Adam& w) { w.list[1].gradient.device = Device::cuda(0); }},
    {"m of another size", "adam.step", invalid, "tensors[1].m: expected [6] f32 cpu, got [5] f32 cpu",
     [](Adam& w) { w.list[1].m.shape[0] = 5; }},
    {"v in f64", "adam.step", mismatch, "tensors[0].v: expected [3, 4] f32 cpu, got [3, 4] f64 cpu",
     [](Adam& w) { w.list[0].v.dtype = DType::f64; }},
    {"v over m", "adam.step", invalid, "tensors[0].v: expected memory apart from tensors[0].m, got an overlap",
     [](Adam& w) { w.list[0].v = w.list[0].m; }},
    {"one parameter twice", "adam.step", invalid, "expected memory apart from tensors[",
     [](Adam& w) { w.list[1].parameter.data = w.list[0].parameter.data; }},
    {"copy in f32", "adam.step", mismatch, "tensors[0].copy: expected f16 or bf16, got [3, 4] f32 cpu",
     [](Adam& w) { w.list[0].copy.dtype = DType::f32; }},
    {"copy of another shape", "adam.step", invalid, "tensors[0].copy: expected [3, 4] bf16 cpu, got [3, 3] bf16 cpu",
     [](Adam& w) { w.list[0].copy.shape[1] = 3; }},
    {"step missing", "adam.step", invalid, "step: expected [1] i64 cpu, got not given", [](Adam& w) { w.tensors.step = {}; }},
    {"step in i32", "adam.step", mismatch, "step: expected [1] i64 cpu, got [1] i32 cpu",
     [](Adam& w) { w.tensors.step.dtype = DType::i32; }},
    {"rate missing", "adam.step", invalid, "rate: expected [1] f32 cpu, got not given", [](Adam& w) { w.tensors.rate = {}; }},
    {"scale without a dimension", "adam.step", invalid, "scale: expected [1] f32 cpu, got [] f32 cpu",
     [](Adam& w) { w.tensors.scale.rank = 0; }},
    {"norm in f64", "adam.step", mismatch, "norm: expected [1] f32 cpu, got [1] f64 cpu",
     [](Adam& w) { w.tensors.norm.dtype = DType::f64; }},
    {"norm over the rate", "adam.step", invalid, "expected memory apart from",
     [](Adam& w) { w.tensors.norm.data = const_cast<void*>(w.tensors.rate.data); }},
    {"overflow in f32", "adam.step", mismatch, "overflow: expected [1] i32 cpu, got [1] f32 cpu",
     [](Adam& w) { w.tensors.overflow.dtype = DType::f32; }},
    {"no workspace", "adam.step", ErrorCode::out_of_memory, "workspace: expected at least", [](Adam& w) { w.workspace = {}; }},
    {"workspace misaligned", "adam.step", invalid, "workspace: expected an address that is a multiple of 64 bytes",
     [](Adam& w) { w.workspace.data = static_cast<std::byte*>(w.workspace.data) + 8; }},
    {"stream of another device", "adam.step", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Adam& w) { w.stream.device = Device::cuda(0); }},
};

TEST(BadCalls, Pointwise_sanitize) { test::expect_bad_calls<Elementwise>(elementwise); }
TEST(BadCalls, Adam_sanitize) { test::expect_bad_calls<Adam>(adams); }

}  // namespace
}  // namespace everglow
