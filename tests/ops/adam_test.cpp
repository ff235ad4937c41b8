// Adam beside its cases: the first step, clipping, overflow, copies, errors.
#include "core/loss_scaler.hpp"
#include "ops/small_layers.hpp"

#include <everglow/optimizer.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

namespace everglow {
namespace {

using test::HostTensor;

using Shapes = std::vector<std::vector<std::int64_t>>;

/// A model of a few tensors, its optimiser state and the scalars of a step.
struct Model {
  std::vector<HostTensor> parameters, gradients, m, v, copies;
  HostTensor step{DType::i64, {1}}, rate{DType::f32, {1}}, scale{DType::f32, {1}}, norm{DType::f32, {1}}, overflow{DType::i32, {1}};
  std::int64_t elements = 0;

  explicit Model(const Shapes& shapes, DType copy = DType::bf16) {
    std::uint64_t stream = 1;
    for (const auto& shape : shapes) {
      for (auto* list : {&parameters, &gradients, &m, &v}) list->emplace_back(DType::f32, shape);
      copies.emplace_back(copy, shape);
      parameters.back().uniform(stream++, -1, 1);
      gradients.back().uniform(stream++, -1, 1);
      m.back().fill(0);
      v.back().fill(0);
      elements += parameters.back().view().elements();
    }
    step.fill(0);
    rate.fill(0.01F);
    scale.fill(1);
  }
  std::vector<AdamTensor> tensors(bool with_copies = false) const {
    std::vector<AdamTensor> out;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      out.push_back({.parameter = parameters[i], .gradient = gradients[i], .m = m[i], .v = v[i], .copy = {}});
      if (with_copies) out.back().copy = copies[i];
    }
    return out;
  }
  AdamSizes sizes() const { return {elements, static_cast<std::int64_t>(parameters.size())}; }
  std::vector<double> all(const std::vector<HostTensor>& list) const {
    std::vector<double> out;
    for (const auto& tensor : list)
      for (const double value : tensor.values()) out.push_back(value);
    return out;
  }
};

/// Runs one step of a row on a workspace of exactly the bytes it asks for.
void run(const AdamDescription& d, const Model& model, const AdamStep& step, const std::string& row, int threads = 2) {
  const AdamPlan plan(d, model.sizes(), Device::cpu(), {.threads = threads, .force = row, .deterministic = true});
  const test::Scratch scratch(plan.workspace_bytes());
  plan.step(step, {scratch.data(), scratch.bytes()});
  EXPECT_TRUE(scratch.guards_intact());
}

TEST(Adam, FirstStepMovesEachParameterByTheRate) {
  // Without clipping m / sqrt(v) is the sign of the gradient on step 1; epsilon and roundings leave 4 u and eps / |g|.
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    Model model(Shapes{{64}});
    const auto before = model.parameters[0].values();
    model.gradients[0].integers(5, 1, 3);
    const auto tensors = model.tensors();
    run({}, model, {.tensors = tensors, .step = model.step, .rate = model.rate}, row);
    for (std::int64_t i = 0; i < 64; ++i)
      EXPECT_NEAR(model.parameters[0].at(i), before[static_cast<std::size_t>(i)] - model.rate.at(0), 0x1p-23 + 0.01 * 1e-6) << row;
  }
}

TEST(Adam, OverflowChangesNothingAndIsNotCounted_sanitize) {
  for (const auto& row : kernels("adam", DeviceKind::cpu))
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(row);
      Model model(Shapes{{10}, {5000}});
      model.step.fill(7);
      model.gradients[1].put(4321, bad);
      for (auto& copy : model.copies) copy.fill(0.5);
      const auto parameters = model.all(model.parameters), m = model.all(model.m), v = model.all(model.v),
                 copies = model.all(model.copies);
      const auto tensors = model.tensors(true);
      run({.clip = 1}, model,
          {.tensors = tensors, .step = model.step, .rate = model.rate, .norm = model.norm, .overflow = model.overflow}, row);
      EXPECT_EQ(model.overflow.at(0), 1);
      EXPECT_EQ(model.step.at(0), 7);
      EXPECT_FALSE(std::isfinite(model.norm.at(0)));
      EXPECT_EQ(model.all(model.parameters), parameters);
      EXPECT_EQ(model.all(model.m), m);
      EXPECT_EQ(model.all(model.v), v);
      EXPECT_EQ(model.all(model.copies), copies);
      model.gradients[1].put(4321, 0.25);
      run({.clip = 1}, model, {.tensors = tensors, .step = model.step, .rate = model.rate, .overflow = model.overflow}, row);
      EXPECT_EQ(model.overflow.at(0), 0);
      EXPECT_EQ(model.step.at(0), 8);
      EXPECT_NE(model.all(model.parameters), parameters);
    }
}

TEST(Adam, ACountThatIsNoneTakesTheFirstRate) {
  for (const float count : {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p40F})
    EXPECT_EQ(rate_entry(count, 9), 0) << count;
  EXPECT_EQ(rate_entry(20, 9), 2);
}

/// Three overflows and three good steps of gradients that are scaled: the steps of a plain run of three, with the rates that the
/// skipped ones move on to.
TEST(Adam, AScalerHalvesDoublesAndChoosesTheRate_sanitize) {
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Model scaled(Shapes{{10}, {500}}), plain = Model(Shapes{{10}, {500}});
    HostTensor scaler(DType::f32, {3}), rates(DType::f32, {2});
    scaler.put(0, 1024), scaler.put(1, 0), scaler.put(2, 0);
    rates.put(0, 0.01), rates.put(1, 0.02);
    const AdamDescription d{.clip = 1, .scale_interval = 2};
    const auto tensors = scaled.tensors(), plain_tensors = plain.tensors();
    const auto step = [&](bool bad, double scale, double good, double skipped) {
      const double factor = scaler.at(0), rate = rates.at(static_cast<std::int64_t>(scaler.at(2)) % 2);
      for (std::size_t k = 0; k < 2; ++k)
        for (std::int64_t i = 0; i < plain.gradients[k].view().elements(); ++i)
          scaled.gradients[k].put(i, factor * plain.gradients[k].at(i));
      if (bad) scaled.gradients[1].put(77, std::numeric_limits<double>::infinity());
      const auto before = scaled.all(scaled.parameters);
      run(d, scaled,
          {.tensors = tensors,
           .step = scaled.step,
           .rate = rates,
           .norm = scaled.norm,
           .overflow = scaled.overflow,
           .scaler = scaler},
          row);
      EXPECT_EQ(scaler.values(), (std::vector<double>{scale, good, skipped}));
      if (bad) {
        EXPECT_EQ(scaled.all(scaled.parameters), before);
        return;
      }
      plain.rate.fill(rate);
      run(d, plain, {.tensors = plain_tensors, .step = plain.step, .rate = plain.rate, .norm = plain.norm}, row);
      EXPECT_EQ(scaled.norm.at(0), plain.norm.at(0));
      EXPECT_EQ(scaled.all(scaled.parameters), plain.all(plain.parameters));  // powers of two change no digit
    };
    step(true, 512, 0, 1);
    step(false, 512, 1, 1);
    step(true, 256, 0, 2);
    step(false, 256, 1, 2);
    step(false, 512, 0, 2);
    step(true, 256, 0, 3);
  }
}

TEST(Adam, AScalersScaleStaysWithinItsBounds) {
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    Model model(Shapes{{4}});
    HostTensor scaler(DType::f32, {3});
    const auto tensors = model.tensors();
    for (const bool bad : {false, true}) {
      model.gradients[0].fill(bad ? std::nan("") : 0.0);
      const double bound = bad ? 0x1p-24 : 0x1p24;
      scaler.put(0, bound), scaler.put(1, 1999), scaler.put(2, 0);
      run({}, model, {.tensors = tensors, .step = model.step, .rate = model.rate, .overflow = model.overflow, .scaler = scaler},
          row);
      EXPECT_EQ(scaler.values(), (std::vector<double>{bound, 0, bad ? 1.0 : 0.0})) << row;
    }
  }
}

TEST(Adam, LargeFiniteGradientsAreNoOverflow) {
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    Model model(Shapes{{100}});
    model.gradients[0].fill(3e38);  // its square is past f32
    const auto tensors = model.tensors();
    run({.clip = 1}, model, {.tensors = tensors, .step = model.step, .rate = model.rate, .overflow = model.overflow}, row);
    EXPECT_EQ(model.overflow.at(0), 0) << row;
    for (const double value : model.parameters[0].values()) EXPECT_TRUE(std::isfinite(value)) << row;
  }
}

TEST(Adam, CopiesAreTheRoundedParameters) {
  for (const auto& row : kernels("adam", DeviceKind::cpu))
    for (const DType dtype : {DType::f16, DType::bf16}) {
      Model model(Shapes{{700}, {3, 3}}, dtype);
      const auto tensors = model.tensors(true);
      run({}, model, {.tensors = tensors, .step = model.step, .rate = model.rate}, row);
      for (std::size_t k = 0; k < 2; ++k)
        for (std::int64_t i = 0; i < model.copies[k].view().elements(); ++i) {
          const auto value = static_cast<float>(model.parameters[k].at(i));
          EXPECT_EQ(model.copies[k].at(i), dtype == DType::f16 ? to_float(to_half(value)) : to_float(to_bfloat16(value))) << row;
        }
    }
}

TEST(Adam, NoTensorsOnlyCount) {
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    Model model(Shapes{});
    run({.clip = 1}, model, {.tensors = {}, .step = model.step, .rate = model.rate, .norm = model.norm, .overflow = model.overflow},
        row);
    EXPECT_EQ(model.step.at(0), 1);
    EXPECT_EQ(model.norm.at(0), 0);
  }
}

TEST(Adam, ErrorsNameTheArgument) {
  Model model(Shapes{{4, 3}, {5}});
  const AdamPlan plan({}, model.sizes());
  const test::Scratch scratch(plan.workspace_bytes());
  const auto step = [&](const std::vector<AdamTensor>& tensors) {
    return test::error_of([&] {
      plan.step({.tensors = tensors, .step = model.step, .rate = model.rate}, {scratch.data(), scratch.bytes()});
    });
  };
  auto tensors = model.tensors();
  tensors[1].m = model.m[0];
  EXPECT_EQ(step(tensors), "[adam.step] tensors[1].m: expected [5] f32 cpu, got [4, 3] f32 cpu");
  tensors = model.tensors();
  tensors[0].v = model.m[0];
  EXPECT_EQ(step(tensors).substr(0, 20), "[adam.step] tensors[");
  EXPECT_NE(step(tensors).find("expected memory apart from"), std::string::npos);
  tensors = model.tensors();
  tensors[0].parameter = model.parameters[0].view().transposed(0, 1);
  EXPECT_EQ(step(tensors), "[adam.step] tensors[0].parameter: expected a dense tensor, got gaps in [3, 4] f32 cpu");
  tensors = model.tensors();
  tensors[1].copy = model.parameters[1];
  EXPECT_EQ(step(tensors), "[adam.step] tensors[1].copy: expected f16 or bf16, got [5] f32 cpu");
  tensors = model.tensors();
  tensors.push_back(tensors[0]);
  EXPECT_EQ(step(tensors), "[adam.step] tensors: expected at most 2, got 3");
  tensors = model.tensors();
  EXPECT_EQ(test::error_of([&] {
              plan.step({.tensors = tensors, .step = model.step}, {scratch.data(), scratch.bytes()});
            }),
            "[adam.step] rate: expected [1] f32 cpu, got not given");
  EXPECT_EQ(test::error_of([&] {
              plan.step({.tensors = tensors, .step = model.rate, .rate = model.rate}, {scratch.data(), scratch.bytes()});
            }),
            "[adam.step] step: expected [1] i64 cpu, got [1] f32 cpu");
  EXPECT_EQ(test::error_of([] { AdamPlan({.beta1 = 1}, {1, 1}); }), "[adam.plan] beta1: expected at least 0 and below 1, got 1");
}

}  // namespace
}  // namespace everglow
