// The linear layer: every case, every accepting row, forward and backward, against the reference in f64.
#include "ops/linear_support.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace everglow {
namespace {

using cases::Case;
using test::HostTensor;

using Problem = test::LinearProblem;
using Tensors = test::LinearTensors;
using test::accepts;
using test::plan_of;

/// Sums of |terms| of the three products, for the bounds: the reference run on absolute values.
struct Magnitudes {
  std::vector<double> forward, dx, dweight, dbias;
};
Magnitudes magnitudes(const Problem& problem, const Tensors& exact, const std::vector<double>& dz) {
  Problem p = problem;
  p.description.activation = Activation::none;
  Tensors t(p, DType::f64, 0);
  const auto absolute = [](std::vector<double> v) {
    for (double& e : v) e = std::fabs(e);
    return v;
  };
  t.x.set(absolute(exact.x.values())), t.weight.set(absolute(exact.weight.values())), t.bias.set(absolute(exact.bias.values()));
  t.dy.set(absolute(dz));
  p.description.training = true;
  const LinearPlan plan = plan_of(p, DType::f64, {.force = "reference.linear"});
  const test::Scratch scratch(plan.workspace_bytes());
  plan.forward(t.forward(p), {scratch.data(), scratch.bytes()});
  plan.backward(t.backward(), {scratch.data(), scratch.bytes()});
  return {t.y.values(), t.dx.values(), t.dweight.values(), t.dbias.values()};
}

/// Errors, with u the unit roundoff of f32 (sums and functions) and s that of the storage type:
/// - A sum of k products: (k + 1) u Σ|terms| in any order (Higham, Accuracy and Stability, section 3.1), plus s |sum| to store it.
/// - The activations are Lipschitz with constant 1.13 and are computed within 16 u of (|z| + |y|) (argument, exponential, division
/// and
///   the two products, each a few u): error of y <= 1.13 · error of z + 16 u (|z| + |y|) + s |y|.
/// - Their slopes change by at most 1.13 · error of z (|act''| <= 1.13: 2 φ(0) for GELU) and are computed within 24 u · 1.13. The
/// stored
///   z is the row's own; relu's slope jumps at 0, so inputs whose |z| is below its error are not compared (none arise by the seed).
double sum_error(std::int64_t k) { return static_cast<double>(k + 1) * 0x1p-24; }

/// The error of storing a value: s |value|, and for f16 at least half of its smallest step, 2^-24.
double stored(DType dtype, double value) {
  return test::unit_roundoff(dtype) * std::max(std::fabs(value), dtype == DType::f16 ? 0x1p-14 : 0.0);
}

class LinearCases : public testing::TestWithParam<Case> {};

TEST_P(LinearCases, EveryRowAgreesWithTheReference) {
  const Problem p = test::linear_problem_of(GetParam());
  const auto& d = p.description;
  const std::int64_t batch = p.sizes.batch;
  Tensors given(p, d.dtype, 0), exact(p, DType::f64, 0);
  given.x.uniform(1, -2, 2), given.weight.uniform(2, -1, 1), given.bias.uniform(3, -1, 1), given.dy.uniform(4, -1, 1);
  exact.take_inputs(given);
  const LinearPlan reference = plan_of(p, DType::f64, {.force = "reference.linear"});
  const test::Scratch reference_scratch(reference.workspace_bytes());
  reference.forward(exact.forward(p), {reference_scratch.data(), reference_scratch.bytes()});
  const std::vector<double> z = exact.preactivation.values(), y = exact.y.values();

  for (const auto& row : kernels("linear", DeviceKind::cpu)) {
    if (!accepts(p, row)) continue;
    SCOPED_TRACE(row);
    const double u = d.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    const LinearPlan plan = plan_of(p, d.dtype, {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    const Workspace workspace(scratch.data(), scratch.bytes());
    Tensors t(p, d.dtype, 3);
    t.take_inputs(given);
    plan.forward(t.forward(p), workspace);
    const Magnitudes first = magnitudes(p, exact, exact.dy.values());
    std::vector<double> z_bound, y_bound;
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double dz = sum_error(d.inputs + 1) * first.forward[i] + stored(d.dtype, z[i]);
      z_bound.push_back(dz);
      y_bound.push_back(1.13 * dz + 16 * u * (std::fabs(z[i]) + std::fabs(y[i])) + stored(d.dtype, y[i]));
    }
    EXPECT_EQ("", test::compare(t.preactivation.values(), z, z_bound));
    EXPECT_EQ("", test::compare(t.y.values(), y, y_bound));

    // Backward is compared on the row's own stored z, so its bound has no error of the forward product.
    exact.preactivation.set(t.preactivation.values());
    reference.backward(exact.backward(), {reference_scratch.data(), reference_scratch.bytes()});
    std::vector<double> dz_magnitude = exact.dy.values();
    for (double& value : dz_magnitude) value *= 1.13;
    const Magnitudes m = magnitudes(p, exact, dz_magnitude);
    plan.backward(t.backward(), workspace);
    const auto bound = [&](const std::vector<double>& sums, const std::vector<double>& values, std::int64_t k) {
      std::vector<double> out;
      for (std::size_t i = 0; i < sums.size(); ++i) out.push_back((sum_error(k) + 24 * u) * sums[i] + stored(d.dtype, values[i]));
      return out;
    };
    EXPECT_EQ("", test::compare(t.dx.values(), exact.dx.values(), bound(m.dx, exact.dx.values(), d.outputs)));
    EXPECT_EQ("", test::compare(t.dweight.values(), exact.dweight.values(), bound(m.dweight, exact.dweight.values(), batch)));
    EXPECT_EQ("", test::compare(t.dbias.values(), exact.dbias.values(), bound(m.dbias, exact.dbias.values(), batch)));
    EXPECT_TRUE(t.guards_intact() && scratch.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearCases, testing::ValuesIn(cases::tested("linear")), [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
});

/// Whole numbers of at most 3 in magnitude: every product and partial sum is exact in f32, so all rows and orders agree to the bit.
TEST(Linear, SmallIntegersAreExact_sanitize) {
  for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const bool accumulate : {false, true})
      for (const std::int64_t batch : {1, 2, 15, 33, 65}) {
        const Problem p{{.inputs = 37, .outputs = 71, .layout = layout, .activation = Activation::relu, .training = true}, {batch}};
        Tensors exact(p, DType::f64, 0);
        exact.x.integers(1, -3, 3), exact.weight.integers(2, -3, 3), exact.bias.integers(3, -3, 3), exact.dy.integers(4, -3, 3);
        const auto run = [&](Tensors& t, DType dtype, const std::string& row) {
          t.take_inputs(exact);
          t.dweight.fill(5), t.dbias.fill(-7);
          const LinearPlan plan = plan_of(p, dtype, {.force = row});
          const test::Scratch scratch(plan.workspace_bytes());
          plan.forward(t.forward(p), {scratch.data(), scratch.bytes()});
          plan.backward(t.backward(accumulate), {scratch.data(), scratch.bytes()});
          EXPECT_TRUE(t.guards_intact() && scratch.guards_intact());
        };
        run(exact, DType::f64, "reference.linear");
        for (const auto& row : kernels("linear", DeviceKind::cpu)) {
          if (!accepts(p, row)) continue;
          SCOPED_TRACE(row);
          Tensors t(p, DType::f32, 5);
          run(t, DType::f32, row);
          EXPECT_EQ("", test::compare(t.y.values(), exact.y.values(), 0));
          EXPECT_EQ("", test::compare(t.dx.values(), exact.dx.values(), 0));
          EXPECT_EQ("", test::compare(t.dweight.values(), exact.dweight.values(), 0));
          EXPECT_EQ("", test::compare(t.dbias.values(), exact.dbias.values(), 0));
        }
      }
}

/// Central differences of L = Σ y dy. With step h the error is h² |y'''| / 6 + u |L| / h: at h = 1e-5, about 1e-10 + 1e-10 here.
TEST(Linear, ReferenceGradientsMatchFiniteDifferences) {
  for (const auto activation : {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu})
    for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs}) {
      SCOPED_TRACE(static_cast<int>(activation));
      const Problem p{
          {.inputs = 4, .outputs = 5, .dtype = DType::f64, .layout = layout, .activation = activation, .training = true}, {3}};
      Tensors t(p, DType::f64, 0);
      t.x.uniform(1, -1, 1), t.weight.uniform(2, -1, 1), t.bias.uniform(3, -1, 1), t.dy.uniform(4, -1, 1);
      const LinearPlan plan = plan_of(p, DType::f64, {.force = "reference.linear"});
      const test::Scratch scratch(plan.workspace_bytes());
      const Workspace workspace(scratch.data(), scratch.bytes());
      const auto loss = [&] {
        plan.forward(t.forward(p), workspace);
        double sum = 0;
        const auto y = t.y.values(), dy = t.dy.values();
        for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
      };
      const auto differences = [&](HostTensor& tensor) {
        std::vector<double> out;
        constexpr double h = 1e-5;
        for (std::int64_t i = 0; i < tensor.view().elements(); ++i) {
          const double before = tensor.at(i);
          tensor.put(i, before + h);
          const double above = loss();
          tensor.put(i, before - h);
          const double below = loss();
          tensor.put(i, before);
          out.push_back((above - below) / (2 * h));
        }
        return out;
      };
      loss();
      plan.backward(t.backward(), workspace);
      const auto dx = t.dx.values(), dweight = t.dweight.values(), dbias = t.dbias.values();
      EXPECT_EQ("", test::compare(dx, differences(t.x), 1e-8));
      EXPECT_EQ("", test::compare(dweight, differences(t.weight), 1e-8));
      EXPECT_EQ("", test::compare(dbias, differences(t.bias), 1e-8));
    }
}

}  // namespace
}  // namespace everglow
