// Tensors of a linear layer that lie in memory in any way: transposed, with gaps between rows and between elements, repeated, and
// folded from more dimensions. Whole numbers, so that every row agrees to the bit in every type.
#include "cases/proof/linear.hpp"
#include "gemm/gemm.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using proof::accepts;
using proof::plan_of;
using Problem = proof::LinearProblem;
using Tensors = proof::LinearTensors;
using test::HostTensor;

enum class Lie { dense, padded, transposed, spread };
constexpr Lie lies[] = {Lie::dense, Lie::padded, Lie::transposed, Lie::spread};

/// A tensor that lies in one of these ways, and the logical view of it.
struct Placed {
  HostTensor memory;
  TensorView view;
  Placed() = default;
  Placed(const HostTensor& like, Lie lie) {
    const TensorView v = like.view();
    const std::int64_t rows = v.rank == 2 ? v.size(0) : 1, columns = v.size(-1);
    if (v.rank == 1) {
      memory = HostTensor(v.dtype, {lie == Lie::spread ? columns * 3 : columns});
      view = memory.view().narrow(0, 0, columns);
      view.strides[0] = lie == Lie::spread ? 3 : 1;
    } else if (lie == Lie::transposed) {
      memory = HostTensor(v.dtype, {columns, rows + 2});
      view = memory.view().narrow(1, 0, rows).transposed(0, 1);
    } else {
      const std::int64_t step = lie == Lie::spread ? 2 : 1;
      memory = HostTensor(v.dtype, {rows, columns * step + (lie == Lie::dense ? 0 : 3)});
      view = memory.view().narrow(1, 0, columns);
      view.strides[1] = step;
    }
    set(like.values());
  }
  std::int64_t place(std::int64_t i) const {
    if (view.rank == 1) return i * view.stride(0);
    return i / view.size(1) * view.stride(0) + i % view.size(1) * view.stride(1);
  }
  void set(const std::vector<double>& values) {
    for (std::int64_t i = 0; i < view.elements(); ++i)
      test::write_element(view.data, view.dtype, place(i), values[static_cast<std::size_t>(i)]);
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < view.elements(); ++i) out.push_back(test::read_element(view.data, view.dtype, place(i)));
    return out;
  }
  /// Nothing between the elements was written.
  bool gaps_intact() const {
    HostTensor copy(memory.view().dtype, {memory.view().elements()});
    copy.set(memory.values());
    for (std::int64_t i = 0; i < view.elements(); ++i) copy.put(place(i), 0);
    std::int64_t left = 0;
    for (const double value : copy.values()) left += value != value ? 1 : 0;
    return left == memory.view().elements() - view.elements() && memory.guards_intact();
  }
};

struct PlacedTensors {
  Placed x, weight, bias, y, preactivation, dy, dx, dweight, dbias;
  PlacedTensors(const Tensors& t, Lie in, Lie weights, Lie out)
      : x(t.x, in),
        weight(t.weight, weights),
        bias(t.bias, weights),
        y(t.y, out),
        preactivation(t.preactivation, out),
        dy(t.dy, in),
        dx(t.dx, out),
        dweight(t.dweight, weights),
        dbias(t.dbias, weights) {}
  LinearForward forward() const {
    return {.x = x.view, .weight = weight.view, .bias = bias.view, .y = y.view, .preactivation = preactivation.view};
  }
  LinearBackward backward(bool accumulate) const {
    return {.dy = dy.view,
            .x = x.view,
            .weight = weight.view,
            .preactivation = preactivation.view,
            .dx = dx.view,
            .dweight = dweight.view,
            .dbias = dbias.view,
            .accumulate = accumulate};
  }
  bool gaps_intact() const {
    return y.gaps_intact() && preactivation.gaps_intact() && dx.gaps_intact() && dweight.gaps_intact() && dbias.gaps_intact();
  }
};

/// Sums of at most 40 products of -1, 0 and 1, and what they are added to, are exact in every type.
Tensors whole_numbers(const Problem& p, DType gradients) {
  Tensors t(p, p.description.dtype, 0, gradients);
  t.x.integers(1, -1, 1), t.weight.integers(2, -1, 1), t.bias.integers(3, -3, 3), t.dy.integers(4, -1, 1);
  t.dweight.integers(5, -9, 9), t.dbias.integers(6, -9, 9);
  return t;
}

void run(const LinearPlan& plan, const LinearForward& forward, const LinearBackward& backward) {
  const test::Scratch scratch(plan.workspace_bytes());
  plan.forward(forward, {scratch.data(), scratch.bytes()});
  plan.backward(backward, {scratch.data(), scratch.bytes()});
  EXPECT_TRUE(scratch.guards_intact());
}

void expect_results(const PlacedTensors& actual, const Tensors& expected) {
  EXPECT_EQ("", test::compare(actual.y.values(), expected.y.values(), 0));
  EXPECT_EQ("", test::compare(actual.preactivation.values(), expected.preactivation.values(), 0));
  EXPECT_EQ("", test::compare(actual.dx.values(), expected.dx.values(), 0));
  EXPECT_EQ("", test::compare(actual.dweight.values(), expected.dweight.values(), 0));
  EXPECT_EQ("", test::compare(actual.dbias.values(), expected.dbias.values(), 0));
  EXPECT_TRUE(actual.gaps_intact());
}

class LinearViews : public testing::TestWithParam<DType> {};

TEST_P(LinearViews, AnyStridesGiveTheSame_sanitize) {
  for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const auto& [batch, inputs, outputs] : {std::array<std::int64_t, 3>{19, 37, 40}, {1, 5, 33}, {33, 1, 2}, {3, 40, 1}}) {
      const Problem p{{.inputs = inputs,
                       .outputs = outputs,
                       .dtype = GetParam(),
                       .layout = layout,
                       .activation = Activation::relu,
                       .training = true},
                      {batch}};
      for (const DType gradients : {p.description.dtype, DType::f32}) {
        if (p.description.dtype == DType::f64 && gradients == DType::f32) continue;
        const Tensors blank = whole_numbers(p, gradients);
        Tensors dense = whole_numbers(p, gradients);
        run(plan_of(p, GetParam(), {.force = "reference.linear"}), dense.forward(p), dense.backward(true));
        for (const auto& row : kernels("linear", DeviceKind::cpu)) {
          if (!accepts(p, row)) continue;
          for (const Lie in : lies)
            for (const Lie weights : lies)
              for (const Lie out : lies) {
                SCOPED_TRACE(row + " " + std::to_string(static_cast<int>(in)) + std::to_string(static_cast<int>(weights)) +
                             std::to_string(static_cast<int>(out)));
                const PlacedTensors t(blank, in, weights, out);
                run(plan_of(p, GetParam(), {.threads = 2, .force = row}), t.forward(), t.backward(true));
                expect_results(t, dense);
              }
        }
      }
    }
}

/// Large enough for oneDNN.
TEST_P(LinearViews, AnyStridesGiveTheSameInLargeProducts) {
  const Problem p{{.inputs = 40, .outputs = 110, .dtype = GetParam(), .training = true}, {70}};
  const Tensors blank = whole_numbers(p, GetParam());
  Tensors dense = whole_numbers(p, GetParam());
  run(plan_of(p, GetParam(), {.force = "reference.linear"}), dense.forward(p), dense.backward(true));
  for (const auto& row : kernels("linear", DeviceKind::cpu)) {
    if (!accepts(p, row)) continue;
    for (const Lie in : lies)
      for (const Lie out : lies) {
        SCOPED_TRACE(row);
        const PlacedTensors t(blank, in, in, out);
        run(plan_of(p, GetParam(), {.threads = 2, .force = row}), t.forward(), t.backward(true));
        expect_results(t, dense);
      }
  }
}

/// One row of x for the whole batch, and a gradient that is the same everywhere, as the sum of y has.
TEST_P(LinearViews, RepeatedTensorsAreRead_sanitize) {
  const Problem p{{.inputs = 21, .outputs = 35, .dtype = GetParam(), .training = true}, {6}};
  Tensors dense = whole_numbers(p, GetParam());
  const std::vector<double> row_values = dense.x.values();
  for (std::int64_t i = 0; i < dense.x.view().elements(); ++i) dense.x.put(i, row_values[static_cast<std::size_t>(i % 21)]);
  dense.dy.fill(1);
  const PlacedTensors t(dense, Lie::dense, Lie::dense, Lie::dense);
  LinearForward forward = t.forward();
  LinearBackward backward = t.backward(false);
  forward.x.strides[0] = backward.x.strides[0] = 0;
  backward.dy.strides[0] = backward.dy.strides[1] = 0;
  run(plan_of(p, GetParam(), {.force = "reference.linear"}), dense.forward(p), dense.backward());
  for (const auto& row : kernels("linear", DeviceKind::cpu)) {
    if (!accepts(p, row)) continue;
    SCOPED_TRACE(row);
    run(plan_of(p, GetParam(), {.force = row}), forward, backward);
    expect_results(t, dense);
  }
}

/// Packing reads any strides, and the packed form of 16 bits takes half of the memory; pairs of bf16 need an even number of rows,
/// here one more for the gradient of x, whose columns fill two panels of 32.
TEST_P(LinearViews, WeightsOfAnyStridesPack_sanitize) {
  for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const std::int64_t batch : {1, 9, 70}) {
      const Problem p{{.inputs = 40, .outputs = 75, .dtype = GetParam(), .layout = layout, .training = true}, {batch}};
      if (!accepts(p, "cpu.linear")) continue;
      const Tensors blank = whole_numbers(p, GetParam());
      Tensors dense = whole_numbers(p, GetParam());
      run(plan_of(p, GetParam(), {.force = "reference.linear"}), dense.forward(p), dense.backward());
      const LinearPlan plan = plan_of(p, GetParam(), {.threads = 2, .force = "cpu.linear"});
      const std::size_t paired = GetParam() == DType::bf16 && multiplies_bf16(chosen_isa()) ? 64 * size_of(DType::bf16) : 0;
      EXPECT_EQ((plan.packed_bytes() - paired) * 4,
                plan_of(p, DType::f32, {.force = "cpu.linear"}).packed_bytes() * size_of(p.description.dtype));
      for (const Lie weights : lies) {
        const PlacedTensors t(blank, Lie::padded, weights, Lie::spread);
        const test::Scratch bytes(plan.packed_bytes());
        PackedWeights packed{.bytes = {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())}}};
        plan.pack(t.weight.view, packed);
        LinearForward forward = t.forward();
        LinearBackward backward = t.backward(false);
        forward.packed = backward.packed = &packed;
        forward.weight = backward.weight = {};
        run(plan, forward, backward);
        expect_results(t, dense);
        EXPECT_TRUE(bytes.guards_intact());
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearViews, testing::Values(DType::f32, DType::f16, DType::bf16, DType::f64),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace everglow
