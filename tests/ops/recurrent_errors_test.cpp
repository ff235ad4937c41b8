// Errors and explanations of the recurrent layer.
#include "cases/proof/recurrent_problem.hpp"
#include "gemm/gemm.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace everglow {
namespace {

using proof::RecurrentProblem;
using test::HostTensor;
using test::Scratch;

void expect_error(ErrorCode code, const std::string& text, const std::function<void()>& f) {
  try {
    f();
    ADD_FAILURE() << "expected an error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_STREQ(error.what(), text.c_str());
  }
}

/// A layer after its forward run; a test spoils one argument and runs again.
struct RecurrentErrors : testing::Test {
  RecurrentProblem p{cases::parse("recurrent steps=3 batch=2 inputs=4 hidden=5 lengths=full dense=1")};
  RecurrentPlan plan{p.description, p.sizes};
  proof::RecurrentResult r = blank_result(p, plan);
  std::vector<RecurrentWeights> weights = p.weight_views();
  std::vector<RecurrentWeightGradients> gradients = gradient_views(r);
  RecurrentForward forward = forward_tensors(p, r, weights);
  RecurrentBackward backward = backward_tensors(p, r, weights, gradients);
  Workspace workspace{r.workspace.data(), r.workspace.bytes()};

  RecurrentErrors() { plan.forward(forward, workspace); }
  void forward_fails(const std::string& text, ErrorCode code = ErrorCode::invalid_argument) {
    expect_error(code, "[recurrent.forward] " + text, [&] { plan.forward(forward, workspace); });
  }
  void backward_fails(const std::string& text, ErrorCode code = ErrorCode::invalid_argument) {
    expect_error(code, "[recurrent.backward] " + text, [&] { plan.backward(backward, workspace); });
  }
};

TEST_F(RecurrentErrors, ShapesNameTheArgument_sanitize) {
  HostTensor other(DType::f32, {3, 2, 9});
  forward.x = other;
  forward_fails("x: expected [any, any, 4] f32 cpu, got [3, 2, 9] f32 cpu");
  forward.x = p.x, forward.y = other;
  forward_fails("y: expected [3, 2, 5] f32 cpu, got [3, 2, 9] f32 cpu");
  backward.dx = other;
  backward_fails("dx: expected [3, 2, 4] f32 cpu, got [3, 2, 9] f32 cpu");
  weights[0].w_hh = other;
  forward.y = r.y;
  forward_fails("weights[0].w_hh: expected [20, 5] f32 cpu, got [3, 2, 9] f32 cpu");
}

TEST_F(RecurrentErrors, MoreThanThePlanHolds_sanitize) {
  HostTensor longer(DType::f32, {4, 2, 4}), wider(DType::f32, {3, 3, 4});
  forward.x = longer;
  forward_fails("x: expected at most 3 steps, got 4");
  forward.x = wider;
  forward_fails("x: expected at most 2 rows, got 3");
}

TEST_F(RecurrentErrors, CountsOfWeights_sanitize) {
  weights.push_back(weights[0]);
  forward.weights = weights;
  forward_fails("weights: expected layers x directions = 1 entries, got 2");
  gradients.push_back(gradients[0]);
  backward.weights = std::span(weights).first(1), backward.dweights = gradients;
  backward_fails("dweights: expected layers x directions = 1 entries, got 2");
  weights.resize(1);
  weights[0].w_ih = {};
  forward.weights = weights;
  forward_fails("weights[0].w_ih: expected [20, 4] f32 cpu, got not given");
}

TEST_F(RecurrentErrors, LengthsOutOfRangeOrAbsent_sanitize) {
  p.lengths.put(1, 4);
  forward_fails("lengths: expected 0 ... 3 for row 1, got 4");
  backward_fails("lengths: expected 0 ... 3 for row 1, got 4");
  p.lengths.put(1, -1);
  forward_fails("lengths: expected 0 ... 3 for row 1, got -1");
  forward.lengths = {};
  forward_fails("lengths: expected a tensor, as the description says, got not given");
  p.lengths.put(1, 3);
  forward.lengths = p.lengths;
  HostTensor resets(DType::u8, {3, 2});
  forward.resets = resets;
  forward_fails("resets: expected none, as the description says, got [3, 2] u8 cpu");
}

TEST_F(RecurrentErrors, OutputsOverInputs_sanitize) {
  RecurrentProblem q(cases::parse("recurrent steps=3 batch=2 inputs=5 hidden=5 dense=1 training=0"));
  const RecurrentPlan other(q.description, q.sizes);
  const Scratch scratch(other.workspace_bytes());
  const auto parts = q.weight_views();
  RecurrentForward t{.x = q.x, .weights = parts, .y = q.x};
  expect_error(ErrorCode::invalid_argument, "[recurrent.forward] y: expected memory apart from x, got an overlap", [&] {
    other.forward(t, {scratch.data(), scratch.bytes()});
  });
  backward.dh0 = r.dc0;
  backward_fails("dh0: expected memory apart from dc0, got an overlap");
}

TEST_F(RecurrentErrors, WorkspaceAndReserve_sanitize) {
  const std::size_t bytes = plan.workspace_bytes();
  workspace.bytes = bytes - 1;
  forward_fails("workspace: expected at least " + std::to_string(bytes) + " bytes, got " + std::to_string(bytes - 1),
                ErrorCode::out_of_memory);
  workspace.bytes = bytes;
  const auto kept = static_cast<std::int64_t>(plan.reserve_bytes());
  forward.reserve = forward.reserve.narrow(0, 0, kept - 1);
  forward_fails("reserve: expected at least " + std::to_string(kept) + " bytes, got " + std::to_string(kept - 1));
  forward.reserve = {};
  forward_fails("reserve: expected [any] u8 cpu, got not given", ErrorCode::invalid_argument);
  expect_error(ErrorCode::invalid_argument, "[recurrent.backward] training: expected a plan made with training = true, got false",
               [&] {
                 RecurrentDescription d = p.description;
                 d.training = false;
                 RecurrentPlan(d, p.sizes).backward(backward, workspace);
               });
}

TEST_F(RecurrentErrors, AForeignReserveIsRefused_sanitize) {
  const RecurrentPlan other(p.description, p.sizes, Device::cpu(), {.force = "reference.recurrent"});
  Scratch reserve(other.reserve_bytes()), scratch(other.workspace_bytes());
  backward.reserve = TensorView(reserve.data(), DType::u8, {static_cast<std::int64_t>(reserve.bytes())});
  const std::string foreign = "[recurrent.backward] reserve: expected what forward of this layer and row wrote, got other bytes";
  expect_error(ErrorCode::invalid_argument, foreign, [&] { other.backward(backward, {scratch.data(), scratch.bytes()}); });
  RecurrentForward t = forward;
  t.x = p.x.const_view().narrow(0, 0, 2), t.y = r.y.view().narrow(0, 0, 2);
  p.lengths.fill(2);
  plan.forward(t, workspace);
  backward.reserve = forward.reserve;
  backward_fails("reserve: expected that of a forward run with 3 steps and 2 rows, got 2 steps and 2 rows");
  p.lengths.fill(3);
  plan.forward(forward, workspace);
  backward.h0 = {};
  backward_fails("h0, c0: expected them given or not as in the forward run");
}

TEST_F(RecurrentErrors, AWrongPackingIsRefused_sanitize) {
  Scratch bytes(plan.packed_bytes());
  PackedWeights packed{TensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())}), 0};
  plan.pack(weights, packed);
  const std::uint64_t key = packed.key;
  packed.key = 7;
  forward.packed = &packed;
  forward_fails("packed: expected weights packed for cpu.recurrent_stepwise (key " + std::to_string(key) + "), got key 7");
  // the key does not depend on the sizes, nor on training
  RecurrentDescription d = p.description;
  d.training = false;
  const RecurrentPlan other(d, {1, 1});
  ASSERT_EQ(other.packed_bytes(), plan.packed_bytes());
  other.pack(weights, packed);
  EXPECT_EQ(packed.key, key);
}

/// Runs the forward pass of a case after `spoil` has changed its tensors.
void option_fails(const std::string& line, const std::string& text, const std::function<void(RecurrentForward&)>& spoil,
                  ErrorCode code = ErrorCode::invalid_argument) {
  const RecurrentProblem p(cases::parse("recurrent steps=3 batch=2 inputs=4 hidden=5 dense=1 " + line));
  const RecurrentPlan plan(p.description, p.sizes);
  const proof::RecurrentResult r = blank_result(p, plan);
  const auto weights = p.weight_views();
  RecurrentForward t = forward_tensors(p, r, weights);
  spoil(t);
  expect_error(code, "[recurrent.forward] " + text, [&] { plan.forward(t, {r.workspace.data(), r.workspace.bytes()}); });
}

TEST(RecurrentOptionErrors, NameTheArgument_sanitize) {
  const HostTensor state(DType::f32, {1, 2, 5}), bytes(DType::u8, {2, 3}), matrix(DType::f32, {3, 5});
  option_fails("cell=gru", "c0: expected none for a cell other than lstm, got [1, 2, 5] f32 cpu",
               [&](RecurrentForward& t) { t.c0 = state; });
  option_fails("cell=relu", "cn: expected none for a cell other than lstm, got [1, 2, 5] f32 cpu",
               [&](RecurrentForward& t) { t.cn = state; });
  const HostTensor half(DType::f16, {1, 2, 5});
  option_fails(
      "dtype=bf16", "c0: expected [1, 2, 5] f32 or bf16 cpu, got [1, 2, 5] f16 cpu", [&](RecurrentForward& t) { t.c0 = half; },
      ErrorCode::type_mismatch);
  option_fails(
      "dtype=bf16", "h0: expected [1, 2, 5] bf16 cpu, got [1, 2, 5] f32 cpu", [&](RecurrentForward& t) { t.h0 = state; },
      ErrorCode::type_mismatch);
  option_fails(
      "", "cn: expected [1, 2, 5] f32 cpu, got [1, 2, 5] f16 cpu", [&](RecurrentForward& t) { t.cn = half; },
      ErrorCode::type_mismatch);
  option_fails("layers=2", "h0: expected [2, 2, 5] f32 cpu, got [1, 2, 5] f32 cpu", [&](RecurrentForward& t) { t.h0 = state; });
  option_fails("resets=1", "resets: expected [3, 2] u8 cpu, got [2, 3] u8 cpu", [&](RecurrentForward& t) { t.resets = bytes; });
  option_fails("resets=1", "resets: expected a tensor, as the description says, got not given",
               [&](RecurrentForward& t) { t.resets = {}; });
  std::vector<RecurrentWeights> weights;
  const auto spoil_weights = [&](const ConstTensorView& w_hr) {
    return [&weights, w_hr](RecurrentForward& t) {
      weights.assign(t.weights.begin(), t.weights.end());
      weights.back().w_hr = w_hr;
      t.weights = weights;
    };
  };
  option_fails("", "weights[0].w_hr: expected none without projection, got [3, 5] f32 cpu", spoil_weights(matrix));
  option_fails("projection=3 layers=2", "weights[1].w_hr: expected [3, 5] f32 cpu, got not given", spoil_weights({}));
  option_fails("layers=2", "weights: expected layers x directions = 2 entries, got 1",
               [](RecurrentForward& t) { t.weights = t.weights.first(1); });
}

TEST(RecurrentPlan, RowsAndReasons_sanitize) {
  const auto rows_of = [](const RecurrentDescription& d) {
    const RecurrentPlan plan(d, {2, 2});
    EXPECT_EQ(plan.explain().kernel, plan.explain().rows[0].taken ? "cpu.recurrent_stepwise" : "reference.recurrent");
    return plan.explain().rows[0].reason;
  };
  EXPECT_EQ(kernels("recurrent", DeviceKind::cpu), (std::vector<std::string>{"cpu.recurrent_stepwise", "reference.recurrent"}));
  const RecurrentPlan plan({.inputs = 3, .hidden = 4}, {2, 2});
  EXPECT_EQ(plan.explain().kernel, "cpu.recurrent_stepwise");
  EXPECT_EQ(plan.reserve_bytes(), 0U);
  const std::string bf16 = multiplies_bf16(chosen_isa())
                               ? "x, h and weights of bf16 multiplied as they are, in pairs; widened where they meet f32"
                               : "bf16 widened to f32";
  for (const auto& [d, words] : std::vector<std::pair<RecurrentDescription, std::string>>{
           {{.inputs = 3, .hidden = 4}, ""},
           {{.inputs = 3, .hidden = 4, .dtype = DType::f16}, "f16 converted to f32"},
           {{.inputs = 3, .hidden = 4, .dtype = DType::bf16, .training = true}, bf16},  // pytorch#88136: no bf16 LSTM
           {{.inputs = 3, .hidden = 4, .dtype = DType::f64}, "f64 is served by the reference alone"},
           {{.cell = Cell::gru, .inputs = 3, .hidden = 4, .layers = 2, .dropout = 0.5F, .resets = true}, ""},
           {{.cell = Cell::gru_reset_before, .inputs = 3, .hidden = 4}, ""},
           {{.cell = Cell::tanh, .inputs = 3, .hidden = 4}, ""},
           {{.cell = Cell::relu, .inputs = 3, .hidden = 4}, ""},
           {{.inputs = 3, .hidden = 4, .projection = 2}, ""}})
    EXPECT_EQ(rows_of(d), words);
}

std::vector<std::string> products(const RecurrentDescription& d, const RecurrentSizes& sizes) {
  const RecurrentPlan plan(d, sizes);
  std::vector<std::string> lines;
  for (const auto& g : plan.explain().gemms)
    lines.push_back(std::to_string(g.layer) + ' ' + std::to_string(g.direction) + ' ' + g.pass + ' ' + g.name + ' ' +
                    std::to_string(g.m) + ' ' + std::to_string(g.n) + ' ' + std::to_string(g.k) + " x" + std::to_string(g.count));
  return lines;
}

TEST(RecurrentPlan, ProductsInTheColumnMajorView_sanitize) {
  using Lines = std::vector<std::string>;
  Lines both;
  for (const std::string direction : {"0 0 ", "0 1 "})
    for (const std::string line :
         {"forward input 20 14 3 x1", "forward recurrent 20 2 5 x7", "activation_gradient recurrent 5 2 20 x7",
          "activation_gradient input 3 14 20 x1", "weight_gradient input 3 20 14 x1", "weight_gradient recurrent 5 20 14 x1"})
      both.push_back(direction + line);
  EXPECT_EQ(products({.inputs = 3, .hidden = 5, .bidirectional = true, .training = true}, {7, 2}), both);
  EXPECT_EQ(products({.cell = Cell::tanh, .inputs = 3, .hidden = 5}, {7, 2}),
            (Lines{"0 0 forward input 5 14 3 x1", "0 0 forward recurrent 5 2 5 x7"}));
  EXPECT_EQ(products({.cell = Cell::gru, .inputs = 3, .hidden = 5, .layers = 2, .bidirectional = true}, {7, 2}),
            (Lines{"0 0 forward input 15 14 3 x1", "0 0 forward recurrent 15 2 5 x7", "0 1 forward input 15 14 3 x1",
                   "0 1 forward recurrent 15 2 5 x7", "1 0 forward input 15 14 10 x1", "1 0 forward recurrent 15 2 5 x7",
                   "1 1 forward input 15 14 10 x1", "1 1 forward recurrent 15 2 5 x7"}));
  EXPECT_EQ(products({.cell = Cell::gru_reset_before, .inputs = 3, .hidden = 5, .training = true}, {7, 2}),
            (Lines{"0 0 forward input 15 14 3 x1", "0 0 forward recurrent 10 2 5 x7", "0 0 forward candidate 5 2 5 x7",
                   "0 0 activation_gradient candidate 5 2 5 x7", "0 0 activation_gradient recurrent 5 2 10 x7",
                   "0 0 activation_gradient input 3 14 15 x1", "0 0 weight_gradient input 3 15 14 x1",
                   "0 0 weight_gradient recurrent 5 10 14 x1", "0 0 weight_gradient candidate 5 5 14 x1"}));
  EXPECT_EQ(products({.inputs = 3, .hidden = 5, .projection = 2, .training = true}, {7, 2}),
            (Lines{"0 0 forward input 20 14 3 x1", "0 0 forward recurrent 20 2 2 x7", "0 0 forward projection 2 2 5 x7",
                   "0 0 activation_gradient projection 5 2 2 x7", "0 0 activation_gradient recurrent 2 2 20 x7",
                   "0 0 activation_gradient input 3 14 20 x1", "0 0 weight_gradient input 3 20 14 x1",
                   "0 0 weight_gradient recurrent 2 20 14 x1", "0 0 weight_gradient projection 5 2 14 x1"}));
}

TEST(RecurrentPlan, SizesThatCannotBe_sanitize) {
  const auto fails = [](const std::string& text, const RecurrentDescription& d, const RecurrentSizes& sizes = {1, 1}) {
    expect_error(ErrorCode::invalid_argument, "[recurrent.plan] " + text, [&] { RecurrentPlan plan(d, sizes); });
  };
  fails("hidden: expected 0 or more, got -1", {.inputs = 1, .hidden = -1});
  fails("layers: expected 1 or more, got 0", {.inputs = 1, .hidden = 1, .layers = 0});
  fails("steps: expected 0 or more, got -2", {.inputs = 1, .hidden = 1}, {-2, 1});
  fails("projection: expected 0 for a cell other than lstm, got 2", {.cell = Cell::gru, .inputs = 1, .hidden = 1, .projection = 2});
  fails("gates x hidden x projection: expected fewer than 2^56 elements, got 4 x 65536 x 1099511627776",
        {.inputs = 1, .hidden = 65536, .projection = std::int64_t{1} << 40});
  fails("dropout: expected 0 <= dropout < 1, got 1", {.inputs = 1, .hidden = 1, .dropout = 1});
}

}  // namespace
}  // namespace everglow
