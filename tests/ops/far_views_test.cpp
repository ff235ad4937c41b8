// Views whose parts lie more than 2^31 elements apart, of every layer that takes strides: small problems in a sparse mapping of
// many GiB, of which a few pages are touched. Each row must give the bits that it gives for dense tensors.
#include "ops/small_layers.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace everglow {
namespace {

using test::HostTensor;

constexpr std::int64_t distance = (std::int64_t{1} << 31) + 96;  // elements; in f32 more than 8 GiB

/// A tensor as another, with such a distance between the parts of its first dimension where `far`.
class Placed {
 public:
  Placed(const HostTensor& like, bool far) : view(like.view()) {
    if (far) view.strides[0] = distance;
    const std::int64_t inner = view.elements() / view.size(0);
    bytes_ = static_cast<std::size_t>((view.size(0) - 1) * view.stride(0) + inner) * size_of(view.dtype);
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    const std::size_t bytes = bytes_;
    memory_ = std::shared_ptr<void>(memory, [bytes](void* p) { munmap(p, bytes); });
    view.data = memory;
    const std::vector<double> values = like.values();
    for (std::int64_t i = 0; i < view.elements(); ++i)
      test::write_element(view.data, view.dtype, place(i), values[static_cast<std::size_t>(i)]);
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < view.elements(); ++i) out.push_back(test::read_element(view.data, view.dtype, place(i)));
    return out;
  }
  TensorView view;

 private:
  std::int64_t place(std::int64_t i) const {
    const std::int64_t inner = view.elements() / view.size(0);
    return i / inner * view.stride(0) + i % inner;
  }
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

HostTensor random(DType dtype, std::vector<std::int64_t> shape) {
  static std::uint64_t stream = 0;
  HostTensor out(dtype, std::move(shape));
  out.uniform(++stream, -1, 1);
  return out;
}

/// A layer's run on tensors that are placed as asked; `placed` hands them out in the order of the call and collects the results.
class Tensors {
 public:
  Tensors(bool far, std::vector<HostTensor>& inputs) : far_(far), inputs_(inputs) {}
  /// An input: the first run draws it, the second takes the same.
  TensorView in(DType dtype, std::vector<std::int64_t> shape) {
    if (next_ == inputs_.size()) inputs_.push_back(random(dtype, std::move(shape)));
    return keep(inputs_[next_++]);
  }
  TensorView out(DType dtype, std::vector<std::int64_t> shape) {
    HostTensor poisoned(dtype, std::move(shape));
    const TensorView view = keep(poisoned);
    outputs_.push_back(kept_.size() - 1);
    return view;
  }
  std::vector<double> results() const {
    std::vector<double> out;
    for (const std::size_t i : outputs_)
      for (const double value : kept_[i].values()) out.push_back(value);
    return out;
  }

 private:
  TensorView keep(const HostTensor& like) {
    kept_.emplace_back(like, far_ && like.view().rank > 1);
    return kept_.back().view;
  }
  bool far_;
  std::vector<HostTensor>& inputs_;
  std::size_t next_ = 0;
  std::vector<Placed> kept_;
  std::vector<std::size_t> outputs_;
};

void expect_same(const std::string& row, const std::function<void(Tensors&)>& layer) {
  std::vector<HostTensor> inputs;
  Tensors near(false, inputs), far(true, inputs);
  layer(near);
  layer(far);
  EXPECT_EQ("", test::compare(far.results(), near.results(), 0)) << row;
}

/// Skips aloud where the machine maps no such sizes.
class FarViews : public testing::Test {
 protected:
  void SetUp() override {
    try {
      const Placed probe(HostTensor(DType::f32, {3, 2}), true);
    } catch (const std::bad_alloc&) {
      GTEST_SKIP() << "this machine maps no 16 GiB without memory behind them";
    }
  }
};

Workspace workspace_of(const test::Scratch& scratch) { return {scratch.data(), scratch.bytes()}; }

TEST_F(FarViews, Linear) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs}) {
      const LinearDescription d{
          .inputs = 5, .outputs = 7, .dtype = dtype, .layout = layout, .activation = Activation::silu, .training = true};
      const std::vector<std::int64_t> w =
          layout == LinearLayout::outputs_inputs ? std::vector<std::int64_t>{7, 5} : std::vector<std::int64_t>{5, 7};
      for (const auto& row : test::accepting_rows<LinearPlan>("linear", d, LinearSizes{3}))
        expect_same(row, [&](Tensors& t) {
          const LinearPlan plan(d, {3}, Device::cpu(), {.threads = 2, .force = row});
          const test::Scratch scratch(plan.workspace_bytes());
          const TensorView x = t.in(dtype, {3, 5}), weight = t.in(dtype, w), z = t.out(dtype, {3, 7});
          plan.forward({.x = x, .weight = weight, .bias = t.in(dtype, {7}), .y = t.out(dtype, {3, 7}), .preactivation = z},
                       workspace_of(scratch));
          plan.backward({.dy = t.in(dtype, {3, 7}),
                         .x = x,
                         .weight = weight,
                         .preactivation = z,
                         .dx = t.out(dtype, {3, 5}),
                         .dweight = t.out(DType::f32, w),
                         .dbias = t.out(DType::f32, {7})},
                        workspace_of(scratch));
        });
    }
}

constexpr DType storage[] = {DType::f32, DType::f16, DType::bf16};

TEST_F(FarViews, Softmax) {
  for (const DType dtype : storage)
    for (const auto& row : test::accepting_rows<SoftmaxPlan>("softmax", SoftmaxDescription{.dtype = dtype}, SoftmaxSizes{3, 19}))
      expect_same(row, [&](Tensors& t) {
        const SoftmaxPlan plan({.dtype = dtype}, {3, 19}, Device::cpu(), {.threads = 2, .force = row});
        const test::Scratch scratch(plan.workspace_bytes());
        const TensorView y = t.out(dtype, {3, 19});
        plan.forward({t.in(dtype, {3, 19}), y}, workspace_of(scratch));
        plan.backward({y, t.in(dtype, {3, 19}), t.out(dtype, {3, 19})}, workspace_of(scratch));
      });
}

TEST_F(FarViews, Embedding) {
  std::int32_t rows[] = {2, 0, 1, 2};
  for (const DType dtype : storage) {
    const EmbeddingDescription d{.vocabulary = 3, .width = 9, .dtype = dtype};
    for (const auto& row : test::accepting_rows<EmbeddingPlan>("embedding", d, EmbeddingSizes{4}))
      expect_same(row, [&](Tensors& t) {
        const EmbeddingPlan plan(d, {4}, Device::cpu(), {.threads = 2, .force = row});
        const test::Scratch scratch(plan.workspace_bytes());
        const ConstTensorView indices(rows, DType::i32, {4});
        plan.forward({indices, t.in(dtype, {3, 9}), t.out(dtype, {4, 9})}, workspace_of(scratch));
        plan.backward({indices, t.in(dtype, {4, 9}), t.out(dtype, {3, 9})}, workspace_of(scratch));
      });
  }
}

TEST_F(FarViews, Loss) {
  std::int32_t classes[] = {4, 0, 2};
  for (const DType dtype : storage) {
    const LossDescription d{.inputs = 6, .classes = 5, .dtype = dtype, .smoothing = 0.1F, .training = true};
    for (const auto& row : test::accepting_rows<LossPlan>("loss", d, LossSizes{3}))
      expect_same(row, [&](Tensors& t) {
        const LossPlan plan(d, {3}, Device::cpu(), {.threads = 2, .force = row, .deterministic = true});
        const test::Scratch scratch(plan.workspace_bytes());
        plan.forward_backward({.forward = {.x = t.in(dtype, {3, 6}),
                                           .weight = t.in(dtype, {5, 6}),
                                           .bias = t.in(dtype, {5}),
                                           .targets = {classes, DType::i32, {3}},
                                           .loss = t.out(DType::f32, {1}),
                                           .count = t.out(DType::f32, {1})},
                               .dx = t.out(dtype, {3, 6}),
                               .dweight = t.out(dtype, {5, 6}),
                               .dbias = t.out(dtype, {5})},
                              workspace_of(scratch));
      });
  }
}

TEST_F(FarViews, Pointwise) {
  for (const DType dtype : storage) {
    const PointwiseDescription d{.operation = Pointwise::activation_gradient, .dtype = dtype, .activation = Activation::gelu_erf};
    for (const auto& row : test::accepting_rows<PointwisePlan>("pointwise", d, PointwiseSizes{60}))
      expect_same(row, [&](Tensors& t) {
        const PointwisePlan plan(d, {60}, Device::cpu(), {.threads = 2, .force = row});
        plan.run({.a = t.in(dtype, {3, 20}), .b = t.in(dtype, {3, 20}), .y = t.out(dtype, {3, 20})});
      });
  }
}

TEST_F(FarViews, Recurrent) {
  const RecurrentDescription d{.inputs = 3, .hidden = 4, .training = true};
  for (const auto& row : test::accepting_rows<RecurrentPlan>("recurrent", d, RecurrentSizes{3, 2}))
    expect_same(row, [&](Tensors& t) {
      const RecurrentPlan plan(d, {3, 2}, Device::cpu(), {.threads = 2, .force = row});
      const test::Scratch scratch(plan.workspace_bytes()), reserve(plan.reserve_bytes());
      const TensorView kept(reserve.data(), DType::u8, {static_cast<std::int64_t>(reserve.bytes())});
      const TensorView x = t.in(DType::f32, {3, 2, 3}), y = t.out(DType::f32, {3, 2, 4});
      const RecurrentWeights weights[] = {{.w_ih = t.in(DType::f32, {16, 3}), .w_hh = t.in(DType::f32, {16, 4})}};
      const RecurrentWeightGradients gradients[] = {{.w_ih = t.out(DType::f32, {16, 3}), .w_hh = t.out(DType::f32, {16, 4})}};
      plan.forward({.x = x, .weights = weights, .y = y, .reserve = kept}, workspace_of(scratch));
      plan.backward({.x = x,
                     .weights = weights,
                     .y = y,
                     .reserve = kept,
                     .dy = t.in(DType::f32, {3, 2, 4}),
                     .dx = t.out(DType::f32, {3, 2, 3}),
                     .dweights = gradients},
                    workspace_of(scratch));
    });
}

TEST_F(FarViews, Attention) {
  const AttentionDescription d{.heads = 2, .head_dim = 8, .causal = true, .training = true};
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", d, AttentionSizes{.batch = 2, .queries = 5, .keys = 5}))
    expect_same(row, [&](Tensors& t) {
      const AttentionPlan plan(d, {.batch = 2, .queries = 5, .keys = 5}, Device::cpu(), {.threads = 2, .force = row});
      const test::Scratch scratch(plan.workspace_bytes());
      const std::vector<std::int64_t> shape{2, 5, 2, 8};
      const TensorView q = t.in(DType::f32, shape), k = t.in(DType::f32, shape), v = t.in(DType::f32, shape);
      const TensorView o = t.out(DType::f32, shape), lse = t.out(DType::f32, {2, 2, 5});
      plan.forward({.q = q, .k = k, .v = v, .o = o, .lse = lse}, workspace_of(scratch));
      plan.backward({.q = q,
                     .k = k,
                     .v = v,
                     .o = o,
                     .lse = lse,
                     .d_o = t.in(DType::f32, shape),
                     .dq = t.out(DType::f32, shape),
                     .dk = t.out(DType::f32, shape),
                     .dv = t.out(DType::f32, shape)},
                    workspace_of(scratch));
    });
}

}  // namespace
}  // namespace everglow
