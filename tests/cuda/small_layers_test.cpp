// Embedding, loss and Adam of a card where the cases do not reach: faults that only the card can see,
// memory on any address, offsets past 2^31, and a whole training step as a graph.
#include "cases/proof/placement.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>

namespace everglow {
namespace {

using proof::Placement;
using test::HostTensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

class CudaEmbedding : public test::OnCard {};
class CudaLoss : public test::OnCard {};
class CudaAdam : public test::OnCard {};
class CudaStep : public test::OnCard {};

/// Zeros for the rows of y, no gradient, and a bit that check_status turns into an error.
TEST_F(CudaEmbedding, IndicesOutOfRangeAreLeftOut_sanitize) {
  constexpr std::int64_t width = 6;
  const std::vector<double> indices = {4, -1, 0, 5, 4, 2147483647};
  HostTensor list(DType::i32, {6}), table(DType::f32, {5, width}), y(DType::f32, {6, width}), dy(DType::f32, {6, width});
  HostTensor dtable(DType::f32, {5, width}), status(DType::i32, {1});
  list.set(indices), status.fill(0);
  table.integers(1, 1, 9), dy.integers(2, 1, 9);
  const EmbeddingPlan plan({.vocabulary = 5, .width = width}, {6}, card);
  const test::Scratch scratch(plan.workspace_bytes());
  proof::forward_on(card, plan, EmbeddingForward{.indices = list, .table = table, .y = y, .status = status}, scratch);
  EXPECT_EQ(status.at(0), status_indices);
  EXPECT_THROW(check_status(status), Error);
  proof::backward_on(card, plan, EmbeddingBackward{.indices = list, .dy = dy, .dtable = dtable, .status = status}, scratch);
  EXPECT_EQ(status.at(0), status_indices);
  std::vector<double> gradient(5 * width, 0);
  for (std::int64_t n = 0; n < 6; ++n)
    for (std::int64_t i = 0; i < width; ++i) {
      const auto index = static_cast<std::int64_t>(indices[static_cast<std::size_t>(n)]);
      const bool there = index >= 0 && index < 5;
      EXPECT_EQ(y.at(n * width + i), there ? table.at(index * width + i) : 0);
      if (there) gradient[static_cast<std::size_t>(index * width + i)] += dy.at(n * width + i);
    }
  EXPECT_EQ(dtable.values(), gradient);
  status.fill(0), list.fill(4);
  proof::forward_on(card, plan, EmbeddingForward{.indices = list, .table = table, .y = y, .status = status}, scratch);
  EXPECT_EQ(status.at(0), 0);
}

/// Rows whose target is out of range count as ignored ones, and what ignored rows hold never matters. All in the same memory, so
/// that the library takes the same products.
TEST_F(CudaLoss, RowsThatDoNotCountNeverMatter_sanitize) {
  constexpr std::int64_t rows = 6, inputs = 5, classes = 7;
  for (const DType dtype : {DType::f32, DType::f16})
    for (const std::string row : {"cublaslt.loss", "cuda.loss"}) {
      if (row.starts_with("cublaslt") && !test::backend("cublaslt").usable) continue;
      SCOPED_TRACE(row + " " + std::string(name(dtype)));
      const LossPlan plan({.inputs = inputs, .classes = classes, .dtype = dtype, .smoothing = 0.1F, .training = true}, {rows}, card,
                          {.force = row});
      const test::Scratch scratch(plan.workspace_bytes());
      HostTensor x(dtype, {rows, inputs}), weight(dtype, {classes, inputs}), list(DType::i64, {rows}), status(DType::i32, {1});
      HostTensor loss(DType::f32, {1}), count(DType::f32, {1}), dx(dtype, {rows, inputs}), dweight(dtype, {classes, inputs});
      HostTensor dbias(dtype, {classes});
      weight.uniform(2, -1, 1);
      const auto run = [&](const std::vector<double>& targets, double filler) {
        x.uniform(1, -1, 1), list.set(targets), status.fill(0);
        for (const std::int64_t ignored : {1, 2, 4})
          for (std::int64_t i = 0; i < inputs; ++i) x.put(ignored * inputs + i, filler);
        for (HostTensor* result : {&loss, &count, &dx, &dweight, &dbias}) result->poison();
        Placement place(card);
        const LossForward f{.x = x, .weight = weight, .targets = list, .loss = loss, .count = count, .status = status};
        plan.forward_backward(placed(place, LossBackward{.forward = f, .dx = dx, .dweight = dweight, .dbias = dbias}),
                              place(scratch), place.stream());
        place.finish();
        std::vector<double> out;
        for (const HostTensor* result : {&loss, &count, &dx, &dweight, &dbias})
          for (const double value : result->values()) out.push_back(value);
        return out;
      };
      const std::vector<double> bad = run({1, 7, -1, 3, -5, 0}, nan);
      EXPECT_EQ(status.at(0), status_indices);
      EXPECT_EQ(count.at(0), 3);
      for (const double value : bad) EXPECT_TRUE(std::isfinite(value));
      EXPECT_EQ(bad, run({1, -1, -1, 3, -1, 0}, 0.25));
      EXPECT_EQ(status.at(0), 0);
    }
}

/// A class whose bias is -inf has probability 0: its gradient is 0 and the others' are finite.
TEST_F(CudaLoss, ClassesCanBeMasked_sanitize) {
  constexpr std::int64_t rows = 3, inputs = 4, classes = 600;
  HostTensor x(DType::f32, {rows, inputs}), weight(DType::f32, {classes, inputs}), bias(DType::f32, {classes});
  HostTensor targets(DType::i32, {rows}), loss(DType::f32, {1}), dweight(DType::f32, {classes, inputs}),
      dbias(DType::f32, {classes});
  x.uniform(1, -1, 1), weight.uniform(2, -1, 1), targets.fill(599), bias.fill(-infinity);
  bias.put(599, 0.5), bias.put(7, 0.25);
  const LossPlan plan({.inputs = inputs, .classes = classes, .training = true}, {rows}, card);
  const test::Scratch scratch(plan.workspace_bytes());
  Placement place(card);
  const LossForward f{.x = x, .weight = weight, .bias = bias, .targets = targets, .loss = loss};
  plan.forward_backward(placed(place, LossBackward{.forward = f, .dweight = dweight, .dbias = dbias}), place(scratch),
                        place.stream());
  place.finish();
  EXPECT_TRUE(std::isfinite(loss.at(0)) && loss.at(0) > 0);
  EXPECT_LT(dbias.at(599), 0);
  // The gradients of the two classes are p - 1 and p of the other. Each is within 8 roundings of magnitudes below 1: an exponential
  // has 2, their sum 3 more, the quotient, the product and the difference 1.
  EXPECT_NEAR(dbias.at(599), -dbias.at(7), 16 * 0x1p-24);
  for (const std::int64_t c : {0, 6, 8, 598}) EXPECT_TRUE(dbias.at(c) == 0 && dweight.at(c * inputs) == 0) << c;
}

/// Tensors of a model, each `shift` elements past the start of its memory.
struct Model {
  std::vector<HostTensor> memory;
  std::vector<AdamTensor> tensors;
  HostTensor step{DType::i64, {1}}, rate{DType::f32, {1}}, scale{DType::f32, {1}}, norm{DType::f32, {1}}, overflow{DType::i32, {1}};

  Model(int count, std::int64_t shift) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t n = i % 7 == 3 ? 0 : 1 + 37 * i;
      AdamTensor t{.parameter = make(DType::f32, n, shift),
                   .gradient = make(i % 3 == 0   ? DType::f16
                                    : i % 3 == 1 ? DType::bf16
                                                 : DType::f32,
                                    n, shift),
                   .m = make(DType::f32, n, shift),
                   .v = make(DType::f32, n, shift, true)};
      if (i % 4 != 0) t.copy = make(i % 2 == 0 ? DType::f16 : DType::bf16, n, shift);
      tensors.push_back(t);
    }
    step.fill(3), rate.fill(0.01), scale.fill(8);
  }
  TensorView make(DType dtype, std::int64_t n, std::int64_t shift, bool squared = false) {
    HostTensor& tensor = memory.emplace_back(dtype, std::vector<std::int64_t>{n + shift});
    const TensorView view = tensor.view().narrow(0, shift, n);
    std::vector<double> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(0.25 + 0.5 * std::sin(static_cast<double>(i + 11 * memory.size())));
    for (double& value : values) value *= squared ? value : 1;
    test::scattered(view, values);
    return view;
  }
  void take_step(const AdamPlan& plan) {
    const test::Scratch scratch(plan.workspace_bytes());
    Placement place(Device::cuda(0));
    plan.step(placed(place, AdamStep{tensors, step, rate, scale, norm, overflow}), place(scratch), place.stream());
    place.finish();
    for (const HostTensor& tensor : memory) EXPECT_TRUE(tensor.guards_intact());
    EXPECT_TRUE(scratch.guards_intact());
  }
  std::vector<double> values() const {
    std::vector<double> out = norm.values();
    for (const AdamTensor& t : tensors)
      for (const ConstTensorView& view :
           {ConstTensorView(t.parameter), ConstTensorView(t.m), ConstTensorView(t.v), ConstTensorView(t.copy)})
        if (view.given())
          for (const double value : test::gathered(view)) out.push_back(value);
    return out;
  }
  std::int64_t parameters() const {
    std::int64_t n = 0;
    for (const AdamTensor& t : tensors) n += t.parameter.elements();
    return n;
  }
};

/// More tensors than a launch takes, of every type beside each other: the same bits on addresses that packs of four cannot be read
/// from.
TEST_F(CudaAdam, ManyTensorsOnAnyAddress_sanitize) {
  Model aligned(150, 0), shifted(150, 1);
  const AdamPlan plan({.weight_decay = 0.1F, .clip = 1}, {aligned.parameters(), 150}, card);
  aligned.take_step(plan), shifted.take_step(plan);
  EXPECT_GT(aligned.norm.at(0), 0);
  EXPECT_EQ(aligned.step.at(0), 4);
  EXPECT_EQ(aligned.values(), shifted.values());
}

/// A gradient that is not finite changes nothing but what reports it.
TEST_F(CudaAdam, OverflowSkipsTheStep_sanitize) {
  for (const double fault : {infinity, -infinity, nan}) {
    Model model(9, 0);
    model.norm.fill(0);
    const AdamPlan plan({.clip = 1}, {model.parameters(), 9}, card);
    std::vector<double> before = model.values();
    const TensorView gradient(const_cast<void*>(model.tensors[8].gradient.data), model.tensors[8].gradient.dtype, {1});
    test::scattered(gradient, {fault});
    model.take_step(plan);
    EXPECT_EQ(model.overflow.at(0), 1);
    EXPECT_EQ(model.step.at(0), 3);
    EXPECT_FALSE(std::isfinite(model.norm.at(0)));
    model.norm.fill(0);
    EXPECT_EQ(model.values(), before);
    test::scattered(gradient, {0.5});
    model.take_step(plan);
    EXPECT_EQ(model.overflow.at(0), 0);
    EXPECT_EQ(model.step.at(0), 4);
  }
}

/// New memory of a card; rows may be far apart. Null where the card has not so much.
struct CardTensor {
  Buffer memory;
  TensorView view;
  CardTensor(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t stride = 0)
      : view(nullptr, dtype, shape, Device::cuda(0)) {
    std::int64_t elements = view.elements();
    if (stride != 0) view.strides[0] = stride, elements = (shape.begin()[0] - 1) * stride + shape.begin()[1];
    memory = Buffer(static_cast<std::size_t>(elements) * size_of(dtype), Device::cuda(0));
    view.data = memory.data();
  }
  /// Row by row: a pitch has 32 bits.
  void set(const HostTensor& from) const {
    for (std::int64_t r = 0; r < view.size(0); ++r) copy(view.narrow(0, r, 1), from.const_view().narrow(0, r, 1));
  }
  std::vector<double> values() const {
    HostTensor to(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
    for (std::int64_t r = 0; r < view.size(0); ++r) copy(to.view().narrow(0, r, 1), view.narrow(0, r, 1));
    return to.values();
  }
};

/// Rows more than 2^31 elements apart.
TEST_F(CudaEmbedding, OffsetsHave64Bits) {
  constexpr std::int64_t far = (std::int64_t{1} << 31) + 8, width = 24;
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaSuccess, cudaMemGetInfo(&free, &total));
  if (free < std::size_t{20} << 30) GTEST_SKIP() << "needs 20 GiB of the card's memory";
  const CardTensor table(DType::bf16, {2, width}, far), y(DType::bf16, {2, width}, far), dtable(DType::bf16, {2, width}, far);
  const CardTensor list(DType::i32, {2});
  HostTensor values(DType::bf16, {2, width}), indices(DType::i32, {2});
  values.integers(1, -9, 9), indices.set({1, 0});
  table.set(values), list.set(indices);
  const EmbeddingPlan plan({.vocabulary = 2, .width = width, .dtype = DType::bf16}, {2}, card);
  const Buffer scratch(plan.workspace_bytes(), card);
  plan.forward({.indices = list.view, .table = table.view, .y = y.view}, scratch, stream);
  plan.backward({.indices = list.view, .dy = y.view, .dtable = dtable.view}, scratch, stream);
  stream.synchronize();
  EXPECT_EQ(dtable.values(), values.values());  // each row came, and went back to where it came from
  const LossPlan loss({.inputs = width, .classes = 2, .dtype = DType::bf16, .training = true}, {2}, card, {.deterministic = true});
  const Buffer more(loss.workspace_bytes(), card);
  const CardTensor sum(DType::f32, {1}), near_sum(DType::f32, {1}), dx(DType::bf16, {2, width}), near(DType::bf16, {2, width});
  near.set(values);
  const LossForward f{.x = table.view, .weight = near.view, .targets = list.view, .loss = sum.view};
  loss.forward_backward({.forward = f, .dx = y.view}, more, stream);
  LossForward g = f;
  g.x = near.view, g.loss = near_sum.view, g.weight = dtable.view;
  loss.forward_backward({.forward = g, .dx = dx.view}, more, stream);
  stream.synchronize();
  EXPECT_EQ(sum.values(), near_sum.values());
  EXPECT_EQ(y.values(), dx.values());
}

/// Embedding, classifier and optimiser as one graph: each replay is a step, and gives what plain calls give.
TEST_F(CudaStep, IsCapturedIntoAGraph) {
  constexpr std::int64_t words = 60, width = 32, classes = 50, rows = 40;
  const EmbeddingPlan embedding({.vocabulary = words, .width = width}, {rows}, card);
  const LossPlan loss({.inputs = width, .classes = classes, .smoothing = 0.1F, .training = true}, {rows}, card);
  const AdamPlan adam({.clip = 1}, {words * width + classes * width, 2}, card);
  HostTensor start(DType::f32, {words, width}), start_weight(DType::f32, {classes, width}), draw(DType::i32, {rows}),
      zero(DType::i64, {1});
  HostTensor zeros(DType::f32, {words, width}), rate_value(DType::f32, {1});
  start.uniform(1, -1, 1), start_weight.uniform(2, -1, 1), draw.integers(3, 0, 49), zero.fill(0), zeros.fill(0),
      rate_value.fill(0.01);
  const CardTensor table(DType::f32, {words, width}), dtable(DType::f32, {words, width}), weight(DType::f32, {classes, width});
  const CardTensor dweight(DType::f32, {classes, width}), y(DType::f32, {rows, width}), dy(DType::f32, {rows, width});
  const CardTensor list(DType::i32, {rows}), sum(DType::f32, {1}), step(DType::i64, {1}), rate(DType::f32, {1}),
      norm(DType::f32, {1});
  const CardTensor m(DType::f32, {words, width}), v(DType::f32, {words, width}), m2(DType::f32, {classes, width}),
      v2(DType::f32, {classes, width});
  const Buffer a(embedding.workspace_bytes(), card), b(loss.workspace_bytes(), card), c(adam.workspace_bytes(), card);
  const auto begin = [&] {
    table.set(start), weight.set(start_weight), list.set(draw), step.set(zero), rate.set(rate_value);
    for (const CardTensor* moment : {&m, &v}) moment->set(zeros);
    for (const CardTensor* moment : {&m2, &v2}) copy(moment->view, zeros.const_view().narrow(0, 0, classes));
  };
  const AdamTensor tensors[] = {{.parameter = table.view, .gradient = dtable.view, .m = m.view, .v = v.view},
                                {.parameter = weight.view, .gradient = dweight.view, .m = m2.view, .v = v2.view}};
  const auto take_step = [&](const Stream& on) {
    embedding.forward({.indices = list.view, .table = table.view, .y = y.view}, a, on);
    const LossForward f{.x = y.view, .weight = weight.view, .targets = list.view, .loss = sum.view};
    loss.forward_backward({.forward = f, .dx = dy.view, .dweight = dweight.view}, b, on);
    embedding.backward({.indices = list.view, .dy = dy.view, .dtable = dtable.view}, a, on);
    adam.step({.tensors = tensors, .step = step.view, .rate = rate.view, .norm = norm.view}, c, on);
  };
  cudaStream_t own = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&own));
  const Stream mine{card, own};
  begin();
  for (int i = 0; i < 3; ++i) take_step(mine);
  mine.synchronize();
  const std::vector<double> parameters = table.values(), classifier = weight.values(), last = sum.values();
  begin();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
  take_step(mine);
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(own, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&ready, graph, 0));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaSuccess, cudaGraphLaunch(ready, own));
  mine.synchronize();
  EXPECT_EQ(step.values(), std::vector<double>{3});
  EXPECT_EQ(table.values(), parameters);
  EXPECT_EQ(weight.values(), classifier);
  EXPECT_EQ(sum.values(), last);
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaStreamDestroy(own);
}

}  // namespace
}  // namespace everglow
