// Adam: every row against a plain implementation in double over many steps; clipping, overflow, loss scale, copies, threads,
// errors.
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

/// The method as the paper writes it, all in double.
struct Plain {
  std::vector<double> parameter, m, v;
  double norm = 0;
  int steps = 0;
  void step(const AdamDescription& d, const std::vector<double>& gradient, double rate, double scale) {
    norm = 0;
    for (const double g : gradient) norm += g / scale * (g / scale);
    norm = std::sqrt(norm);
    const double clip = d.clip > 0 && norm > d.clip ? d.clip / norm : 1;
    ++steps;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i] / scale * clip;
      m[i] = d.beta1 * m[i] + (1 - static_cast<double>(d.beta1)) * g;
      v[i] = d.beta2 * v[i] + (1 - static_cast<double>(d.beta2)) * g * g;
      const double m_hat = m[i] / (1 - std::pow(d.beta1, steps)), v_hat = v[i] / (1 - std::pow(d.beta2, steps));
      parameter[i] = parameter[i] - rate * d.weight_decay * parameter[i] - rate * m_hat / (std::sqrt(v_hat) + d.epsilon);
    }
  }
};

struct Setting {
  const char* name;
  AdamDescription d;
  float scale;
};

class AdamSettings : public testing::TestWithParam<Setting> {};

/// Each step rounds m, v and the parameter once, from factors and products with a few roundings each: after t steps m is within
/// 6 t u max|m|, v within 8 t u v, so the direction, at most sqrt((1 - b1)^2 / ((1 - b2)(1 - b1^2 / b2))) < 8 in magnitude, within
/// 40 t u of it, times the rate; and the parameter adds t u |p|. All factors are summed over t steps.
TEST_P(AdamSettings, TwentyStepsAgreeWithAPlainImplementation) {
  constexpr int steps = 20;
  const auto [name, d, scale] = GetParam();
  const double u = test::unit_roundoff(DType::f32);
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    SCOPED_TRACE(row);
    Model model(Shapes{{37, 5}, {}, {0, 4}, {9001}});
    model.scale.fill(scale);
    Plain plain{
        .parameter = model.all(model.parameters), .m = std::vector<double>(static_cast<std::size_t>(model.elements), 0), .v = {}};
    plain.v = plain.m;
    for (int t = 1; t <= steps; ++t) {
      for (std::size_t i = 0; i < model.gradients.size(); ++i)
        model.gradients[i].uniform(static_cast<std::uint64_t>(100 * t) + i, -scale, scale);
      plain.step(d, model.all(model.gradients), model.rate.at(0), scale);
      const auto tensors = model.tensors();
      run(d, model,
          {.tensors = tensors,
           .step = model.step,
           .rate = model.rate,
           .scale = model.scale,
           .norm = model.norm,
           .overflow = model.overflow},
          row);
      EXPECT_EQ(model.step.at(0), t);
      EXPECT_EQ(model.overflow.at(0), 0);
      EXPECT_NEAR(model.norm.at(0), plain.norm, 2 * u * plain.norm);
    }
    const double t = steps, growth = t * t * 40 * 8 * u * model.rate.at(0) + 2 * t * u;
    EXPECT_EQ("", test::compare(model.all(model.parameters), plain.parameter, growth));
    EXPECT_EQ("", test::compare(model.all(model.m), plain.m, 6 * t * u));
    EXPECT_EQ("", test::compare(model.all(model.v), plain.v, 8 * t * u));
    for (const auto* list : {&model.parameters, &model.m, &model.v})
      for (const auto& tensor : *list) EXPECT_TRUE(tensor.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, AdamSettings,
                         testing::Values(Setting{"plain_sanitize", {}, 1}, Setting{"clip", {.clip = 3}, 1},
                                         Setting{"loose_clip", {.clip = 1e6F}, 1}, Setting{"decay", {.weight_decay = 0.1F}, 1},
                                         Setting{"loss_scale", {.clip = 2}, 1024},
                                         Setting{"other_betas", {.beta1 = 0.5F, .beta2 = 0.9F, .epsilon = 1e-3F}, 1}),
                         [](const auto& info) { return info.param.name; });

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

TEST(Adam, ThreadCountsGiveTheSameBits) {
  for (const auto& row : kernels("adam", DeviceKind::cpu)) {
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 2, 3}) {
      Model model(Shapes{{50000}, {17}, {31, 1001}});
      const auto tensors = model.tensors();
      for (int t = 0; t < 3; ++t)
        run({.clip = 1}, model, {.tensors = tensors, .step = model.step, .rate = model.rate, .norm = model.norm}, row, threads);
      results.push_back(model.all(model.parameters));
      results.back().push_back(model.norm.at(0));
    }
    EXPECT_EQ(results[0], results[1]) << row;
    EXPECT_EQ(results[0], results[2]) << row;
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
