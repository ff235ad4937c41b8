// Every layer but the sequences against what PyTorch and JAX computed in f64: the reference in f64, and every row that takes f32.
// The inputs are multiples of 1/64, exact in both.
#include "cases/proof/linear.hpp"
#include "ops/small_layers.hpp"
#include "ops/stored_vectors.hpp"
#include "support/tensor.hpp"

#include <everglow/embedding.hpp>
#include <everglow/loss.hpp>
#include <everglow/optimizer.hpp>
#include <everglow/softmax.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow {
namespace {

using test::HostTensor;
using test::StoredCase;
using Values = std::vector<double>;

constexpr DType dtypes[] = {DType::f64, DType::f32};

template <class Row>
void with_trace(const StoredCase& c, const std::string& row, DType dtype, const Row& f) {
  SCOPED_TRACE(c.name + ", " + row + ", " + std::string(name(dtype)));
  f();
}

/// Errors to first order, as linear_test.cpp derives them, with u the roundoff: z = x Wᵀ + b is within (I + 2) u Σ|terms|; the
/// activations and their slopes have Lipschitz constant 1.13 and are computed within 16 u (|z| + |y|) and 24 u · 1.13.
struct LinearBounds {
  Values z, y, dx, dweight, dbias;
  LinearBounds(const StoredCase& c, double u)
      : y(c.values("y").size()), dx(c.values("dx").size()), dweight(c.values("dweight").size()), dbias(c.values("dbias").size()) {
    const auto rows = static_cast<std::size_t>(c.size("x", 0)), inputs = static_cast<std::size_t>(c.size("x", 1)),
               outputs = static_cast<std::size_t>(c.size("weight", 0));
    const Values &x = c.values("x"), &w = c.values("weight"), &b = c.values("bias"), &dy = c.values("dy");
    const auto terms = [&](std::size_t count) { return static_cast<double>(count + 2) * u; };
    for (std::size_t n = 0; n < rows; ++n)
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::size_t at = n * outputs + o;
        double sum = std::fabs(b[o]);
        for (std::size_t i = 0; i < inputs; ++i) sum += std::fabs(x[n * inputs + i] * w[o * inputs + i]);
        const double e = terms(inputs) * sum, value = std::fabs(c.values("y")[at]), size = 1.13 * std::fabs(dy[at]);
        z.push_back(e);
        y[at] = 1.13 * e + 16 * u * (std::fabs(c.values("z")[at]) + value) + u * value;
        const double slope = std::fabs(dy[at]) * 1.13 * (e + 24 * u);
        for (std::size_t i = 0; i < inputs; ++i) {
          dx[n * inputs + i] += std::fabs(w[o * inputs + i]) * (slope + terms(outputs) * size);
          dweight[o * inputs + i] += std::fabs(x[n * inputs + i]) * (slope + terms(rows) * size);
        }
        dbias[o] += slope + terms(rows) * size;
      }
  }
};

TEST(Torch, Linear_sanitize) {
  for (const StoredCase& c : test::torch_cases("linear"))
    for (const DType dtype : dtypes) {
      const LinearDescription d{.inputs = c.size("x", 1),
                                .outputs = c.size("y", 1),
                                .dtype = dtype,
                                .activation = test::parse_activation(c.name.substr(7)),
                                .training = true};
      const LinearSizes sizes{c.size("x", 0)};
      const LinearBounds bounds(c, test::roundoff_beside_stored(dtype));
      for (const auto& row : test::accepting_rows<LinearPlan>("linear", d, sizes))
        with_trace(c, row, dtype, [&] {
          const LinearPlan plan(d, sizes, Device::cpu(), {.force = row});
          const test::Scratch scratch(plan.workspace_bytes());
          const HostTensor x = c.host("x", dtype), weight = c.host("weight", dtype), bias = c.host("bias", dtype),
                           dy = c.host("dy", dtype);
          const HostTensor y = c.blank("y", dtype), z = c.blank("y", dtype), dx = c.blank("x", dtype),
                           dweight = c.blank("weight", dtype), dbias = c.blank("bias", dtype);
          plan.forward({.x = x, .weight = weight, .bias = bias, .y = y, .preactivation = z}, {scratch.data(), scratch.bytes()});
          EXPECT_EQ("", test::compare(z.values(), c.values("z"), bounds.z));
          EXPECT_EQ("", test::compare(y.values(), c.values("y"), bounds.y));
          plan.backward({.dy = dy, .x = x, .weight = weight, .preactivation = z, .dx = dx, .dweight = dweight, .dbias = dbias},
                        {scratch.data(), scratch.bytes()});
          EXPECT_EQ("", test::compare(dx.values(), c.values("dx"), bounds.dx));
          EXPECT_EQ("", test::compare(dweight.values(), c.values("dweight"), bounds.dweight));
          EXPECT_EQ("", test::compare(dbias.values(), c.values("dbias"), bounds.dbias));
        });
    }
}

/// With n columns and exponentials of arguments to R below the maximum, y is within e = (5 + n + R) u of itself, log y within
/// e (1 + |log y|). The gradient y (dy - Σ y dy), |dy| <= 1, is then within y (3 e + (n + 6) u); that of the logarithm,
/// dy - y Σ dy, within n (1.4 e + (n + 4) u) + 2 (n + 1) u, since y (1 + |log y|) < 1.4.
/// What is not finite is so exactly.
void expect_softmax(const std::vector<StoredCase>& cases) {
  for (const StoredCase& c : cases)
    for (const DType dtype : dtypes) {
      const SoftmaxDescription d{.dtype = dtype, .log = c.number("log") != 0};
      const SoftmaxSizes sizes{c.size("x", 0), c.size("x", 1)};
      const double u = test::roundoff_beside_stored(dtype), n = static_cast<double>(sizes.columns), e = (5 + n + 40) * u;
      Values y_bound, dx_bound;
      for (const double value : c.values("y")) {
        const double y = std::isfinite(value) ? value : 0;
        y_bound.push_back(e * (d.log ? 1 + std::fabs(y) : y) + 1e-37);
        dx_bound.push_back((d.log ? n * (1.4 * e + (n + 4) * u) + 2 * (n + 1) * u : y * (3 * e + (n + 6) * u)) + 1e-37);
      }
      for (const auto& row : test::accepting_rows<SoftmaxPlan>("softmax", d, sizes))
        with_trace(c, row, dtype, [&] {
          const SoftmaxPlan plan(d, sizes, Device::cpu(), {.force = row});
          const test::Scratch scratch(plan.workspace_bytes());
          const HostTensor y = c.blank("y", dtype), dx = c.blank("y", dtype);
          plan.forward({c.host("x", dtype), y}, {scratch.data(), scratch.bytes()});
          EXPECT_EQ("", test::compare(y.values(), c.values("y"), y_bound));
          if (!c.has("dy")) return;
          plan.backward({y, c.host("dy", dtype), dx}, {scratch.data(), scratch.bytes()});
          EXPECT_EQ("", test::compare(dx.values(), c.values("dx"), dx_bound));
        });
    }
}

TEST(Torch, Softmax_sanitize) { expect_softmax(test::torch_cases("softmax")); }
TEST(Jax, Softmax_sanitize) { expect_softmax(test::jax_cases("softmax")); }

/// The bounds of cases/proof/pointwise.cpp.
void expect_activations(const std::vector<StoredCase>& cases) {
  for (const StoredCase& c : cases)
    for (const DType dtype : dtypes) {
      const PointwiseDescription value{
          .operation = Pointwise::activation, .dtype = dtype, .activation = test::parse_activation(c.name.substr(10))};
      PointwiseDescription slope = value;
      slope.operation = Pointwise::activation_gradient;
      const PointwiseSizes sizes{c.size("z", 0)};
      const double u = test::roundoff_beside_stored(dtype);
      Values y_bound, dz_bound;
      for (std::size_t i = 0; i < c.values("z").size(); ++i) {
        const double z = std::fabs(c.values("z")[i]), dy = std::fabs(c.values("dy")[i]), cubed = z < 1e3 ? 0.1 * z * z * z : 0;
        y_bound.push_back(u * std::fabs(c.values("y")[i]) + 10 * u * z + 1e-37);
        dz_bound.push_back(u * std::fabs(c.values("dz")[i]) + 16 * u * (1 + std::min(z, 1e3) + cubed) * dy + 1e-37);
      }
      for (const auto& row : test::accepting_rows<PointwisePlan>("pointwise", value, sizes))
        with_trace(c, row, dtype, [&] {
          const HostTensor z = c.host("z", dtype), y = c.blank("z", dtype);
          PointwisePlan(value, sizes, Device::cpu(), {.force = row}).run({.a = z, .b = {}, .y = y});
          EXPECT_EQ("", test::compare(y.values(), c.values("y"), y_bound));
          PointwisePlan(slope, sizes, Device::cpu(), {.force = row}).run({.a = z, .b = c.host("dy", dtype), .y = y});
          EXPECT_EQ("", test::compare(y.values(), c.values("dz"), dz_bound));
        });
    }
}

TEST(Torch, Pointwise_sanitize) { expect_activations(test::torch_cases("pointwise")); }
TEST(Jax, Pointwise_sanitize) { expect_activations(test::jax_cases("pointwise")); }

/// Rows are copied, and sums of multiples of 1/64 are exact.
TEST(Torch, Embedding_sanitize) {
  for (const StoredCase& c : test::torch_cases("embedding"))
    for (const DType dtype : dtypes)
      for (const DType index : {DType::i32, DType::i64}) {
        const EmbeddingDescription d{.vocabulary = c.size("table", 0),
                                     .width = c.size("table", 1),
                                     .dtype = dtype,
                                     .padding_index = static_cast<std::int64_t>(c.number("padding"))};
        const EmbeddingSizes sizes{static_cast<std::int64_t>(c.values("indices").size())};
        for (const auto& row : test::accepting_rows<EmbeddingPlan>("embedding", d, sizes))
          with_trace(c, row, dtype, [&] {
            const EmbeddingPlan plan(d, sizes, Device::cpu(), {.force = row});
            const test::Scratch scratch(plan.workspace_bytes());
            const HostTensor indices = c.host("indices", index), y = c.blank("y", dtype), dtable = c.blank("table", dtype);
            plan.forward({indices, c.host("table", dtype), y}, {scratch.data(), scratch.bytes()});
            EXPECT_EQ("", test::compare(y.values(), c.values("y"), 0));
            plan.backward({indices, c.host("dy", dtype), dtable}, {scratch.data(), scratch.bytes()});
            EXPECT_EQ("", test::compare(dtable.values(), c.values("dtable"), 0));
          });
      }
}

/// As loss_test.cpp derives them, with u the roundoff and every probability at most 1.
struct LossBounds {
  double loss, dx, dweight;
  LossBounds(const StoredCase& c, double factor, double u) {
    const double reach = static_cast<double>(c.size("x", 1)) + 1, classes = static_cast<double>(c.size("weight", 0)),
                 counted = c.number("count"), largest = std::log(classes) + 4 * reach, e = reach * reach * u,
                 r = 2 * e + (classes + 16 + 4 * reach) * u;
    loss = counted * (2 * e + (classes + 8 + 8 * largest) * u) + u * counted * largest;
    dx = factor * (r + (14 + 2 * classes) * u);
    dweight = factor * counted * (2 + 1 / classes) * (r + (5 + counted) * u);
  }
};

void expect_loss(const std::vector<StoredCase>& cases) {
  for (const StoredCase& c : cases)
    for (const DType dtype : dtypes) {
      const LossDescription d{.inputs = c.size("x", 1),
                              .classes = c.size("weight", 0),
                              .dtype = dtype,
                              .smoothing = static_cast<float>(c.number("smoothing")),
                              .ignore_index = c.whole("ignored", -1),
                              .training = true};
      const LossSizes sizes{c.size("x", 0)};
      const bool mean = c.number("mean") != 0;
      const double count = c.number("count");
      const LossBounds bounds(c, mean ? 1 / count : 1, test::roundoff_beside_stored(dtype));
      for (const auto& row : test::accepting_rows<LossPlan>("loss", d, sizes))
        with_trace(c, row, dtype, [&] {
          const LossPlan plan(d, sizes, Device::cpu(), {.force = row});
          const test::Scratch scratch(plan.workspace_bytes());
          const HostTensor x = c.host("x", dtype), weight = c.host("weight", dtype), bias = c.host("bias", dtype);
          const HostTensor targets = c.host("targets", DType::i64), loss(dtype, {1}), counted(DType::f32, {1});
          const HostTensor dx = c.blank("x", dtype), dweight = c.blank("weight", dtype), dbias = c.blank("bias", dtype);
          plan.forward_backward(
              {.forward = {.x = x, .weight = weight, .bias = bias, .targets = targets, .loss = loss, .count = counted},
               .divide_by_count = mean,
               .dx = dx,
               .dweight = dweight,
               .dbias = dbias},
              {scratch.data(), scratch.bytes()});
          EXPECT_EQ(counted.at(0), count);
          EXPECT_NEAR(loss.at(0), c.values("loss")[0] * (mean ? count : 1), bounds.loss);
          EXPECT_EQ("", test::compare(dx.values(), c.values("dx"), bounds.dx));
          EXPECT_EQ("", test::compare(dweight.values(), c.values("dweight"), bounds.dweight));
          EXPECT_EQ("", test::compare(dbias.values(), c.values("dbias"), bounds.dweight));
        });
    }
}

TEST(Torch, Loss_sanitize) { expect_loss(test::torch_cases("loss")); }
TEST(Jax, Loss_sanitize) { expect_loss(test::jax_cases("loss")); }

/// The states of one row's run through all steps.
struct AdamRun {
  HostTensor parameter[2], m[2], v[2];
  HostTensor step{DType::i64, {1}}, rate{DType::f32, {1}}, norm{DType::f32, {1}};
  explicit AdamRun(const StoredCase& c) {
    step.fill(0), rate.fill(c.number("rate"));
    for (int i = 0; i < 2; ++i) {
      const std::string key = "start." + std::to_string(i);
      for (HostTensor* state : {&parameter[i], &m[i], &v[i]}) *state = HostTensor(DType::f32, c.tensors.at(key).shape);
      parameter[i].set(c.values(key)), m[i].fill(0), v[i].fill(0);
    }
  }
  void take_step(const AdamPlan& plan, const StoredCase& c, const std::string& number) {
    std::vector<AdamTensor> tensors;
    std::vector<HostTensor> gradients;
    for (int i = 0; i < 2; ++i) {
      const std::string key = "gradient." + number + '.' + std::to_string(i);
      gradients.emplace_back(DType::f32, c.tensors.at(key).shape);
      gradients.back().set(c.values(key));
      tensors.push_back({.parameter = parameter[i], .gradient = gradients.back(), .m = m[i], .v = v[i]});
    }
    const test::Scratch scratch(plan.workspace_bytes());
    plan.step({.tensors = tensors, .step = step, .rate = rate, .norm = norm}, {scratch.data(), scratch.bytes()});
  }
};

/// Rounding as adam_test.cpp derives it: after t steps m is within 6 t u max|m|, v within 8 t u max v, the parameter within
/// t² 40 · 8 u rate + 2 t u |p|. PyTorch clips to max / (norm + 1e-6): its gradients are smaller by the share s = 1e-6 / norm, its
/// m by at most s and its v by 2 s, and so each direction, at most 8, is off by at most 2 s of itself.
TEST(Torch, AdamWithClipping_sanitize) {
  for (const StoredCase& c : test::torch_cases("adam")) {
    const AdamDescription d{.beta1 = static_cast<float>(c.number("beta1")),
                            .beta2 = static_cast<float>(c.number("beta2")),
                            .epsilon = static_cast<float>(c.number("epsilon")),
                            .weight_decay = static_cast<float>(c.number("decay")),
                            .clip = static_cast<float>(c.number("clip"))};
    const auto steps = static_cast<int>(c.number("steps"));
    for (const auto& row : kernels("adam", DeviceKind::cpu))
      with_trace(c, row, DType::f32, [&] {
        const AdamPlan plan(d, {58, 2}, Device::cpu(), {.force = row});
        AdamRun run(c);
        const double u = test::roundoff_beside_stored(DType::f32), t = steps;
        double share = 0;
        for (int step = 0; step < steps; ++step) {
          const double norm = c.number("norm." + std::to_string(step));
          run.take_step(plan, c, std::to_string(step));
          EXPECT_NEAR(run.norm.at(0), norm, 2 * u * norm);
          if (d.clip > 0) share = std::max(share, 1e-6 / norm);
        }
        EXPECT_EQ(run.step.at(0), steps);
        for (int i = 0; i < 2; ++i) {
          const auto expected = [&](const char* name) { return c.values(name + std::to_string(i)); };
          const auto largest = [](const Values& values) {
            double out = 0;
            for (const double value : values) out = std::max(out, std::fabs(value));
            return out;
          };
          const Values end = expected("end."), m = expected("m."), v = expected("v.");
          EXPECT_EQ("", test::compare(run.m[i].values(), m, (6 * t * u + share) * largest(m)));
          EXPECT_EQ("", test::compare(run.v[i].values(), v, (8 * t * u + 2 * share) * largest(v)));
          const double bound = (t * t * 40 * 8 * u + t * 8 * 2 * share) * c.number("rate") + 2 * t * u * largest(end);
          EXPECT_EQ("", test::compare(run.parameter[i].values(), end, bound));
        }
      });
  }
}

}  // namespace
}  // namespace everglow
