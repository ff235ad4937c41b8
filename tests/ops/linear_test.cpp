// The linear layer beside its proofs: products that are exact, and gradients of the reference by finite differences.
#include "cases/proof/linear.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using test::HostTensor;

using Problem = proof::LinearProblem;
using Tensors = proof::LinearTensors;
using proof::accepts;
using proof::plan_of;

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
