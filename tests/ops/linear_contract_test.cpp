// What a linear plan promises beside its numbers: packing, strides, equal bits for any thread count, explanations and error texts.
#include "cases/proof/linear.hpp"
#include "gemm/onednn.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace everglow {
namespace {

using Problem = proof::LinearProblem;
using Tensors = proof::LinearTensors;
using proof::plan_of;
using test::HostTensor;

constexpr Activation activations[] = {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf,
                                      Activation::silu};

TensorView bytes_of(const test::Scratch& scratch) {
  return {scratch.data(), DType::u8, {static_cast<std::int64_t>(scratch.bytes())}};
}

void fill(Tensors& t) { t.x.uniform(1, -2, 2), t.weight.uniform(2, -1, 1), t.bias.uniform(3, -1, 1), t.dy.uniform(4, -1, 1); }

void run(const LinearPlan& plan, const Problem& p, Tensors& t, const PackedWeights* packed = nullptr) {
  const test::Scratch scratch(plan.workspace_bytes());
  LinearForward forward = t.forward(p);
  LinearBackward backward = t.backward();
  forward.packed = backward.packed = packed;
  if (packed != nullptr) forward.weight = backward.weight = {};
  plan.forward(forward, {scratch.data(), scratch.bytes()});
  plan.backward(backward, {scratch.data(), scratch.bytes()});
  EXPECT_TRUE(t.guards_intact() && scratch.guards_intact());
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  EXPECT_EQ("", test::compare(a.y.values(), b.y.values(), 0));
  EXPECT_EQ("", test::compare(a.preactivation.values(), b.preactivation.values(), 0));
  EXPECT_EQ("", test::compare(a.dx.values(), b.dx.values(), 0));
  EXPECT_EQ("", test::compare(a.dweight.values(), b.dweight.values(), 0));
  EXPECT_EQ("", test::compare(a.dbias.values(), b.dbias.values(), 0));
}

template <class Call>
void expect_error(ErrorCode code, const std::string& text, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "expected an error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(LinearContract, PackedWeightsGiveTheBitsOfPlainOnes_sanitize) {
  for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const std::int64_t batch : {0, 1, 3, 16, 500}) {
      const Problem p{{.inputs = 75, .outputs = 133, .layout = layout, .activation = Activation::silu, .training = true}, {batch}};
      Tensors plain(p, DType::f32, 0), with_packed(p, DType::f32, 4);
      fill(plain);
      with_packed.take_inputs(plain);
      const LinearPlan plan = plan_of(p, DType::f32, {.threads = 2, .force = "cpu.linear"});
      const test::Scratch bytes(plan.packed_bytes());
      PackedWeights packed{.bytes = bytes_of(bytes)};
      plan.pack(plain.weight, packed);
      run(plan, p, plain);
      run(plan, p, with_packed, &packed);
      EXPECT_TRUE(bytes.guards_intact());
      expect_same_bits(plain, with_packed);
    }
}

/// As in every layer: at least packed_bytes() bytes on a cache line.
TEST(LinearContract, PackedBytesMayBeMoreButNotAstray_sanitize) {
  const Problem p{{.inputs = 8, .outputs = 16}, {4}};
  Tensors t(p, DType::f32, 0);
  fill(t);
  const LinearPlan plan = plan_of(p, DType::f32, {.force = "cpu.linear"});
  const test::Scratch bytes(plan.packed_bytes() + 128);
  const auto part = [&](std::int64_t begin, std::int64_t more) {
    PackedWeights packed{.bytes = bytes_of(bytes).narrow(0, begin, static_cast<std::int64_t>(plan.packed_bytes()) + more)};
    plan.pack(t.weight, packed);
    LinearForward forward = t.forward(p);
    forward.packed = &packed;
    const test::Scratch scratch(plan.workspace_bytes());
    plan.forward(forward, {scratch.data(), scratch.bytes()});
  };
  EXPECT_NO_THROW(part(0, 128));
  expect_error(ErrorCode::invalid_argument, "packed.bytes: expected at least", [&] { part(0, -1); });
  expect_error(ErrorCode::invalid_argument, "packed.bytes: expected an address that is a multiple of 64 bytes",
               [&] { part(8, 0); });
}

TEST(LinearContract, AKeyOfAnotherDescriptionOrRowIsRefused) {
  const Problem p{{.inputs = 8, .outputs = 16}, {4}};
  Problem swapped = p;
  swapped.description.layout = LinearLayout::inputs_outputs;
  Tensors t(p, DType::f32, 0);
  fill(t);
  const LinearPlan plan = plan_of(p, DType::f32, {.force = "cpu.linear"});
  const LinearPlan other = plan_of(swapped, DType::f32, {.force = "cpu.linear"});
  const test::Scratch bytes(plan.packed_bytes());
  PackedWeights packed{.bytes = bytes_of(bytes)};
  LinearForward forward = t.forward(p);
  forward.packed = &packed;
  expect_error(ErrorCode::invalid_argument, "packed.key", [&] { plan.forward(forward, {}); });
  plan.pack(t.weight, packed);
  plan.forward(forward, {});
  expect_error(ErrorCode::invalid_argument, "packed.key", [&] { other.forward(forward, {}); });
  const LinearPlan reference = plan_of(p, DType::f32, {.force = "reference.linear"});
  EXPECT_EQ(reference.packed_bytes(), 0U);
  expect_error(ErrorCode::unsupported, "no packed form", [&] { reference.forward(forward, {}); });
  expect_error(ErrorCode::unsupported, "no packed form", [&] { reference.pack(t.weight, packed); });
}

/// Counted, not timed: oneDNN's primitives that runs of dense tensors make. Sizes that no other test has.
TEST(LinearContract, APreparedPlanMakesNothingAtItsFirstRun) {
  const ExplanationRow first = LinearPlan({.inputs = 96, .outputs = 160}, {.batch = 211}, Device::cpu()).explain().rows.front();
  if (first.name != "onednn.linear" || !first.taken) GTEST_SKIP() << first.name << ": " << first.reason;
  std::int64_t batch = 211;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
      for (const auto activation : {Activation::none, Activation::silu})
        for (const bool training : {false, true}) {
          if (!onednn_multiplies(dtype)) continue;
          SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(batch));
          const Problem p{
              {.inputs = 96, .outputs = 160, .dtype = dtype, .layout = layout, .activation = activation, .training = training},
              {++batch}};
          const LinearPlan plan = plan_of(p, dtype, {.threads = 2, .force = "onednn.linear"});
          const auto made_by = [](const auto& call) {
            const std::uint64_t before = onednn_primitives_made();
            call();
            return onednn_primitives_made() - before;
          };
          const auto all_runs = [&] {
            const test::Scratch scratch(plan.workspace_bytes());
            const Workspace workspace{scratch.data(), scratch.bytes()};
            for (const DType gradients : {dtype, DType::f32}) {
              Tensors t(p, dtype, 0, gradients);
              fill(t);
              for (const bool bias : {false, true}) {
                LinearForward forward = t.forward(p);
                if (!bias) forward.bias = {};
                plan.forward(forward, workspace);
              }
              for (const bool accumulate : {false, true})
                if (training) plan.backward(t.backward(accumulate), workspace);
            }
          };
          EXPECT_GE(made_by([&] { plan.prepare({batch}); }), training ? 5U : 2U);
          EXPECT_EQ(made_by(all_runs), 0U);
          EXPECT_EQ(made_by([&] { plan.prepare({batch}); }), 0U);
          EXPECT_GT(made_by([&] { plan.prepare({batch - 100}); }), 0U) << "another shape";
        }
}

TEST(LinearContract, PreparingIsNothingWhereNoLibraryServes) {
  const Problem p{{.inputs = 96, .outputs = 160, .training = true}, {190}};
  const std::uint64_t before = onednn_primitives_made();
  for (const char* row : {"cpu.linear", "reference.linear"}) plan_of(p, DType::f32, {.force = row}).prepare({190});
  plan_of(p, DType::f32, {}).prepare({0});
  EXPECT_EQ(onednn_primitives_made(), before);
}

TEST(LinearContract, ThreadsDoNotChangeTheBits) {
  for (const auto activation : activations) {
    const Problem p{{.inputs = 150, .outputs = 261, .activation = activation, .training = true}, {530}};
    Tensors one(p, DType::f32, 0);
    fill(one);
    const LinearPlan single = plan_of(p, DType::f32, {.threads = 1, .deterministic = true});
    EXPECT_EQ(single.explain().kernel, "cpu.linear");
    run(single, p, one);
    for (const int threads : {2, 3}) {
      Tensors t(p, DType::f32, 1);
      t.take_inputs(one);
      run(plan_of(p, DType::f32, {.threads = threads, .deterministic = true}), p, t);
      expect_same_bits(one, t);
    }
  }
}

TEST(LinearContract, OneRowHasTheBitsOfAWholeBatch) {
  const Problem p{{.inputs = 300, .outputs = 130, .activation = Activation::gelu_erf, .training = true}, {67}};
  Tensors t(p, DType::f32, 0);
  fill(t);
  const LinearPlan plan = plan_of(p, DType::f32, {.deterministic = true});
  run(plan, p, t);
  HostTensor y(DType::f32, {1, 130}), z(DType::f32, {1, 130});
  const test::Scratch scratch(plan.workspace_bytes());
  for (const std::int64_t row : {0, 31, 66}) {
    plan.forward({.x = t.x.const_view().narrow(0, row, 1), .weight = t.weight, .bias = t.bias, .y = y, .preactivation = z},
                 {scratch.data(), scratch.bytes()});
    const auto all = t.y.values();
    EXPECT_EQ("", test::compare(y.values(), {all.begin() + row * 130, all.begin() + (row + 1) * 130}, 0));
  }
}

/// Far from 0 the activations end in their limits, without overflow on the way.
TEST(LinearContract, ActivationsOfLargeInputsEndInTheirLimits_sanitize) {
  const std::vector<double> inputs{-1e30, -200, -20, -5, -0.0, 0, 5, 20, 200, 1e30};
  const auto n = static_cast<std::int64_t>(inputs.size());
  for (const auto activation : activations) {
    const Problem p{{.inputs = 1, .outputs = 1, .activation = activation, .training = true}, {n}, false};
    Tensors exact(p, DType::f64, 0), t(p, DType::f32, 0);
    exact.x.set(inputs), exact.weight.fill(1), exact.dy.fill(1);
    t.take_inputs(exact);
    run(plan_of(p, DType::f64, {.force = "reference.linear"}), p, exact);
    run(plan_of(p, DType::f32, {.force = "cpu.linear"}), p, t);
    std::vector<double> y_bound, dx_bound;  // as in linear_test.cpp: 16 u (|z| + |y|), and 24 · 1.13 u for the slope
    for (std::int64_t i = 0; i < n; ++i) {
      y_bound.push_back(16 * 0x1p-24 * (std::fabs(inputs[static_cast<std::size_t>(i)]) + std::fabs(exact.y.at(i))));
      dx_bound.push_back(24 * 1.13 * 0x1p-24);
    }
    EXPECT_EQ("", test::compare(t.y.values(), exact.y.values(), y_bound));
    EXPECT_EQ("", test::compare(t.dx.values(), exact.dx.values(), dx_bound));
  }
}

TEST(LinearContract, GradientsThatAreNotGivenAreNotComputed_sanitize) {
  const Problem p{{.inputs = 20, .outputs = 40, .activation = Activation::relu, .training = true}, {9}};
  for (const auto& row : kernels("linear", DeviceKind::cpu)) {
    if (!proof::accepts(p, row)) continue;
    SCOPED_TRACE(row);
    Tensors all(p, DType::f32, 0), some(p, DType::f32, 0);
    fill(all);
    some.take_inputs(all);
    const LinearPlan plan = plan_of(p, DType::f32, {.force = row});
    run(plan, p, all);
    const test::Scratch scratch(plan.workspace_bytes());
    const Workspace workspace(scratch.data(), scratch.bytes());
    plan.backward({.dy = all.dy, .weight = all.weight, .preactivation = all.preactivation, .dx = some.dx}, workspace);
    plan.backward({.dy = all.dy, .x = all.x, .preactivation = all.preactivation, .dweight = some.dweight}, workspace);
    plan.backward({.dy = all.dy, .preactivation = all.preactivation, .dbias = some.dbias}, workspace);
    EXPECT_EQ("", test::compare(some.dx.values(), all.dx.values(), 0));
    EXPECT_EQ("", test::compare(some.dweight.values(), all.dweight.values(), 0));
    EXPECT_EQ("", test::compare(some.dbias.values(), all.dbias.values(), 0));
  }
}

TEST(LinearContract, LeadingDimensionsFoldIntoBatch) {
  const Problem p{{.inputs = 6, .outputs = 10}, {12}};
  Tensors t(p, DType::f32, 0);
  fill(t);
  const LinearPlan plan(p.description, p.sizes);
  plan.forward(t.forward(p), {});
  HostTensor y(DType::f32, {3, 4, 10});
  plan.forward({.x = t.x.const_view().reshaped({3, 4, 6}), .weight = t.weight, .bias = t.bias, .y = y}, {});
  EXPECT_EQ("", test::compare(y.values(), t.y.values(), 0));
}

TEST(LinearContract, TheExplanationHasTheProductsOfTheGuide) {
  const LinearDescription d{.inputs = 1024, .outputs = 4096, .training = true};
  const auto& gemms = LinearPlan(d, {512}).explain().gemms;
  ASSERT_EQ(gemms.size(), 3U);
  const auto sizes = [](const ExplanationGemm& g) { return std::vector<std::int64_t>{g.m, g.n, g.k}; };
  EXPECT_EQ(sizes(gemms[0]), (std::vector<std::int64_t>{4096, 512, 1024}));
  EXPECT_EQ(sizes(gemms[1]), (std::vector<std::int64_t>{1024, 512, 4096}));
  EXPECT_EQ(sizes(gemms[2]), (std::vector<std::int64_t>{1024, 4096, 512}));
  LinearDescription keras = d;
  keras.layout = LinearLayout::inputs_outputs;
  const LinearPlan plan(keras, {512});
  EXPECT_EQ(sizes(plan.explain().gemms[2]), (std::vector<std::int64_t>{4096, 1024, 512}));
}

TEST(LinearContract, PreferredStridesKeepRowsOnCacheLinesAndApart) {
  const LinearPlan plan({.inputs = 8, .outputs = 8}, {1});
  EXPECT_EQ(plan.preferred_stride(0), 0);
  EXPECT_EQ(plan.preferred_stride(1), 16);
  EXPECT_EQ(plan.preferred_stride(33708), 33712);
  EXPECT_EQ(plan.preferred_stride(1024), 1040);  // 4096 bytes would share the sets of a cache
}

TEST(LinearContract, ErrorsNameTheArgumentWhatWasExpectedAndWhatCame) {
  const Problem p{{.inputs = 8, .outputs = 4, .activation = Activation::relu, .training = true}, {5}};
  const Tensors t(p, DType::f32, 0);
  const LinearPlan plan(p.description, p.sizes);
  const HostTensor narrow(DType::f32, {5, 7}), tall(DType::f32, {6, 8}), half(DType::f16, {5, 8});
  const test::Scratch scratch(plan.workspace_bytes());
  const auto forward = [&](auto change) {
    return [&, change] {
      LinearForward f = t.forward(p);
      change(f);
      plan.forward(f, {scratch.data(), scratch.bytes()});
    };
  };
  const auto invalid = ErrorCode::invalid_argument;
  expect_error(invalid, "[linear.forward] x: expected [any, 8] f32 cpu, got [5, 7] f32 cpu",
               forward([&](auto& f) { f.x = narrow; }));
  expect_error(invalid, "x: expected at most 5 rows, got 6", forward([&](auto& f) { f.x = tall; }));
  expect_error(ErrorCode::type_mismatch, "x: expected [any, 8] f32 cpu", forward([&](auto& f) { f.x = half; }));
  expect_error(invalid, "preactivation: expected [5, 4] f32 cpu, got not given", forward([&](auto& f) { f.preactivation = {}; }));
  expect_error(invalid, "weight: expected [4, 8] f32 cpu, got not given", forward([&](auto& f) { f.weight = {}; }));
  expect_error(invalid, "y: expected memory apart from preactivation", forward([&](auto& f) { f.preactivation = f.y; }));
  LinearBackward b = t.backward();
  expect_error(ErrorCode::out_of_memory, "workspace: expected at least", [&] { plan.backward(b, {}); });
  b.x = {};
  expect_error(invalid, "[linear.backward] x: expected [5, 8] f32 cpu, got not given", [&] {
    plan.backward(b, {scratch.data(), scratch.bytes()});
  });
  const LinearPlan inference({.inputs = 8, .outputs = 4}, {5});
  expect_error(invalid, "training: expected a plan made with training = true", [&] { inference.backward(t.backward(), {}); });
  expect_error(invalid, "inputs: expected 0 or more, got -1", [] { LinearPlan({.inputs = -1}, {}); });
}

}  // namespace
}  // namespace everglow
