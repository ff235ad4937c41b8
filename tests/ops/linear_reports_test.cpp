// What users reported of the linear layers of other libraries, on every row and type: each is a test here.
#include "cases/proof/linear.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace everglow {
namespace {

using proof::accepts;
using proof::plan_of;
using Problem = proof::LinearProblem;
using Tensors = proof::LinearTensors;
using test::HostTensor;

constexpr DType types[] = {DType::f32, DType::f16, DType::bf16};
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

void for_every_row(Problem p, const std::function<void(const Problem&, const std::string&)>& f) {
  for (const DType dtype : types) {
    p.description.dtype = dtype;
    for (const auto& row : kernels("linear", DeviceKind::cpu)) {
      if (!accepts(p, row)) continue;
      SCOPED_TRACE(row + ' ' + std::string(name(dtype)));
      f(p, row);
    }
  }
}

void forward(const LinearPlan& plan, const LinearForward& tensors) {
  const test::Scratch scratch(plan.workspace_bytes());
  plan.forward(tensors, {scratch.data(), scratch.bytes()});
}
void backward(const LinearPlan& plan, const LinearBackward& tensors) {
  const test::Scratch scratch(plan.workspace_bytes());
  plan.backward(tensors, {scratch.data(), scratch.bytes()});
}

/// huggingface/transformers#5651: sums of f16 products that pass 65504 on their way and come back; oneDNN's products too.
TEST(LinearReports, SumsMayPassTheLargestHalfOnTheirWay_sanitize) {
  for (const std::int64_t batch : {1, 64})
    for_every_row({{.inputs = 64, .outputs = 65}, {batch}, false}, [&](const Problem& p, const std::string& row) {
      Tensors t(p, p.description.dtype, 0);
      t.x.fill(256);
      for (std::int64_t i = 0; i < t.weight.view().elements(); ++i) t.weight.put(i, i % 64 < 32 ? 256 : -256);
      forward(plan_of(p, p.description.dtype, {.force = row}), t.forward(p));
      EXPECT_EQ("", test::compare(t.y.values(), std::vector<double>(static_cast<std::size_t>(batch * 65), 0.0), 0));
    });
}

/// And a result that is too large is infinite, not NaN.
TEST(LinearReports, AResultPastTheLargestHalfIsInfinite) {
  const Problem p{{.inputs = 64, .outputs = 65, .dtype = DType::f16}, {64}, false};
  for (const auto& row : kernels("linear", DeviceKind::cpu)) {
    if (!accepts(p, row)) continue;
    Tensors t(p, DType::f16, 0);
    t.x.fill(256), t.weight.fill(256);
    forward(plan_of(p, DType::f16, {.force = row}), t.forward(p));
    for (const double value : t.y.values()) EXPECT_TRUE(std::isinf(value) && value > 0) << row;
  }
}

/// ISEEKYAN/Megatron-LM#146: 256 + 1 is 257 in an f32 gradient, and 256 where it is rounded to bf16 on the way.
/// AMD-AGI/Primus#1046: every one of many micro-batches is added, not the first alone.
TEST(LinearReports, WeightGradientsInF32GatherSmallParts_sanitize) {
  for (const std::int64_t batch : {1, 70})
    for_every_row({{.inputs = 65, .outputs = 66, .training = true}, {batch}}, [&](const Problem& p, const std::string& row) {
      Tensors t(p, p.description.dtype, 0, DType::f32);
      t.x.fill(0), t.dy.fill(0), t.weight.fill(0);
      for (std::int64_t i = 0; i < 65; ++i) t.x.put(i, 1);  // the first row alone counts
      for (std::int64_t i = 0; i < 66; ++i) t.dy.put(i, 1);
      t.dweight.fill(256), t.dbias.fill(256);
      const LinearPlan plan = plan_of(p, p.description.dtype, {.force = row});
      for (int step = 0; step < 32; ++step) backward(plan, t.backward(true));
      EXPECT_EQ("", test::compare(t.dweight.values(), std::vector<double>(65 * 66, 288.0), 0));
      EXPECT_EQ("", test::compare(t.dbias.values(), std::vector<double>(66, 288.0), 0));
    });
}

/// mlx#2698, JuliaGPU/CUDA.jl#2952, apex#735: an empty sum is 0, over NaN too, and leaves what is accumulated.
TEST(LinearReports, EmptySumsAreZeroOverNaN_sanitize) {
  for_every_row({{.inputs = 5, .outputs = 6, .training = true}, {0}}, [&](const Problem& p, const std::string& row) {
    Tensors t(p, p.description.dtype, 0);
    const LinearPlan plan = plan_of(p, p.description.dtype, {.force = row});
    backward(plan, t.backward());
    EXPECT_EQ("", test::compare(t.dweight.values(), std::vector<double>(30, 0.0), 0));
    EXPECT_EQ("", test::compare(t.dbias.values(), std::vector<double>(6, 0.0), 0));
    t.dweight.fill(3), t.dbias.fill(4);
    backward(plan, t.backward(true));
    EXPECT_EQ("", test::compare(t.dweight.values(), std::vector<double>(30, 3.0), 0));
    EXPECT_EQ("", test::compare(t.dbias.values(), std::vector<double>(6, 4.0), 0));
  });
  for_every_row({{.inputs = 0, .outputs = 6, .training = true}, {3}}, [&](const Problem& p, const std::string& row) {
    Tensors t(p, p.description.dtype, 0);
    t.bias.fill(2);
    forward(plan_of(p, p.description.dtype, {.force = row}), t.forward(p));
    EXPECT_EQ("", test::compare(t.y.values(), std::vector<double>(18, 2.0), 0));
  });
}

/// NVIDIA/cutlass#506, #49, #1058, composable_kernel#512: addresses that are aligned to one element, sizes of no multiple.
TEST(LinearReports, OddAddressesAndSizes_sanitize) {
  for (const std::int64_t inputs : {1, 3, 133})
    for_every_row({{.inputs = inputs, .outputs = 67, .training = true}, {65}}, [&](const Problem& p, const std::string& row) {
      const DType dtype = p.description.dtype;
      Tensors exact(p, DType::f64, 0);
      exact.x.integers(1, -1, 1), exact.weight.integers(2, -1, 1), exact.bias.integers(3, -1, 1), exact.dy.integers(4, -1, 1);
      const HostTensor x(dtype, {65, inputs + 3}), weight(dtype, {67, inputs + 1}), y(dtype, {65, 69}), dx(dtype, {65, inputs + 1});
      const auto part = [](const HostTensor& t, std::int64_t columns) { return t.view().narrow(1, 1, columns); };
      const auto set = [](const TensorView& to, const HostTensor& from) {
        for (std::int64_t i = 0; i < to.elements(); ++i)
          test::write_element(to.data, to.dtype, i / to.size(1) * to.stride(0) + i % to.size(1), from.at(i));
      };
      const auto differs = [](const TensorView& actual, const HostTensor& expected) {
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < actual.elements(); ++i) {
          const std::int64_t at = i / actual.size(1) * actual.stride(0) + i % actual.size(1);
          wrong += test::read_element(actual.data, actual.dtype, at) != expected.at(i) ? 1 : 0;
        }
        return wrong;
      };
      Tensors t(p, dtype, 0);
      t.take_inputs(exact);
      set(part(x, inputs), exact.x), set(part(weight, inputs), exact.weight);
      const LinearPlan reference = plan_of(p, DType::f64, {.force = "reference.linear"});
      forward(reference, exact.forward(p));
      backward(reference, exact.backward());
      const LinearPlan plan = plan_of(p, dtype, {.force = row});
      forward(plan, {.x = part(x, inputs), .weight = part(weight, inputs), .bias = t.bias, .y = part(y, 67)});
      backward(plan, {.dy = t.dy, .x = part(x, inputs), .weight = part(weight, inputs), .dx = part(dx, inputs)});
      EXPECT_EQ(differs(part(y, 67), exact.y), 0);
      EXPECT_EQ(differs(part(dx, inputs), exact.dx), 0);
    });
}

/// pytorch#186148: a dimension of one element may have any stride.
TEST(LinearReports, StridesOfOneElementDoNotMatter_sanitize) {
  for (const std::int64_t strange : {0, 1, 777, -5})
    for_every_row({{.inputs = 1, .outputs = 40}, {1}}, [&](const Problem& p, const std::string& row) {
      Tensors t(p, p.description.dtype, 0);
      t.x.fill(3), t.weight.fill(2), t.bias.fill(1);
      LinearForward tensors = t.forward(p);
      tensors.x.strides[0] = tensors.x.strides[1] = tensors.weight.strides[1] = tensors.y.strides[0] = strange;
      forward(plan_of(p, p.description.dtype, {.force = row}), tensors);
      EXPECT_EQ("", test::compare(t.y.values(), std::vector<double>(40, 7.0), 0));
    });
}

/// NaN of one row stays in this row and is never lost, whatever the activation (oneDNN's relu makes 0 of it).
TEST(LinearReports, NaNIsNeitherLostNorSpread_sanitize) {
  for (const auto activation : {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu})
    for (const bool training : {false, true})
      for_every_row({{.inputs = 40, .outputs = 130, .activation = activation, .training = training}, {66}},
                    [&](const Problem& p, const std::string& row) {
                      Tensors t(p, p.description.dtype, 0);
                      t.x.uniform(1, -1, 1), t.weight.uniform(2, -1, 1), t.bias.uniform(3, -1, 1);
                      t.x.put(7 * 40 + 3, nan_value);
                      forward(plan_of(p, p.description.dtype, {.force = row}), t.forward(p));
                      const std::vector<double> y = t.y.values();
                      std::int64_t wrong = 0;
                      for (std::size_t i = 0; i < y.size(); ++i) wrong += std::isnan(y[i]) != (i / 130 == 7) ? 1 : 0;
                      EXPECT_EQ(wrong, 0) << static_cast<int>(activation);
                    });
}

/// pytorch#45422, vllm#966: a row's result does not depend on the rest of the batch or on the threads, with `deterministic`.
TEST(LinearReports, BitsDoNotDependOnBatchOrThreads) {
  for (const DType dtype : types)
    for (const bool packed : {false, true}) {
      const Problem p{{.inputs = 301, .outputs = 135, .dtype = dtype, .activation = Activation::silu, .training = true}, {67}};
      Tensors t(p, dtype, 0, DType::f32), one(p, dtype, 0, DType::f32);
      t.x.uniform(1, -2, 2), t.weight.uniform(2, -1, 1), t.bias.uniform(3, -1, 1), t.dy.uniform(4, -1, 1);
      one.take_inputs(t);
      const auto run = [&](const Problem& problem, const LinearForward& f, const LinearBackward& b, int threads) {
        const LinearPlan plan = plan_of(problem, dtype, {.threads = threads, .deterministic = true});
        EXPECT_EQ(plan.explain().kernel, "cpu.linear");
        const test::Scratch bytes(packed ? plan.packed_bytes() : 0);
        PackedWeights weights{.bytes = {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())}}};
        LinearForward to = f;
        LinearBackward back = b;
        if (packed) plan.pack(t.weight, weights), to.packed = back.packed = &weights;
        forward(plan, to);
        backward(plan, back);
      };
      run(p, t.forward(p), t.backward(), 1);
      for (const int threads : {2, 3, 100}) {
        run(p, one.forward(p), one.backward(), threads);
        EXPECT_EQ("", test::compare(one.y.values(), t.y.values(), 0));
        EXPECT_EQ("", test::compare(one.dx.values(), t.dx.values(), 0));
        EXPECT_EQ("", test::compare(one.dweight.values(), t.dweight.values(), 0));
        EXPECT_EQ("", test::compare(one.dbias.values(), t.dbias.values(), 0));
      }
      for (const std::int64_t row : {0, 13, 66}) {
        Problem single = p;
        single.sizes.batch = 1;
        const HostTensor y(dtype, {1, 135}), z(dtype, {1, 135}), dx(dtype, {1, 301});
        LinearForward f = t.forward(p);
        f.x = t.x.const_view().narrow(0, row, 1), f.y = y, f.preactivation = z;
        run(single, f, {.dy = t.dy.const_view().narrow(0, row, 1), .weight = t.weight, .preactivation = z, .dx = dx}, 2);
        const auto same = [row](const HostTensor& part, const HostTensor& whole) {
          const std::vector<double> all = whole.values();
          const std::int64_t n = part.view().size(1);
          return test::compare(part.values(), {all.begin() + row * n, all.begin() + (row + 1) * n}, 0);
        };
        EXPECT_EQ("", same(y, t.y));
        EXPECT_EQ("", same(z, t.preactivation));
        EXPECT_EQ("", same(dx, t.dx));
      }
    }
}

TEST(LinearReports, Tf32IsIeeeOnACpuAndSaysSo) {
  const LinearPlan plan({.inputs = 8, .outputs = 8}, {4}, Device::cpu(), {.math = Math::tf32});
  bool said = false;
  for (const auto& row : plan.explain().rows) said = said || (row.taken && row.reason.find("tf32 is ieee") != std::string::npos);
  EXPECT_TRUE(said);
  const LinearPlan ieee({.inputs = 8, .outputs = 8}, {4});
  for (const auto& row : ieee.explain().rows) EXPECT_EQ(row.reason.find("tf32"), std::string::npos);
}

}  // namespace
}  // namespace everglow
