// What training steps promise on every device, as checks that the tests of the CPU and of cards call.
#pragma once

#include "gnmt/model_batches.hpp"

#include <everglow/gnmt/translate.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace everglow::gnmt::test {

/// A tensor of any device on the host, as f64.
inline std::vector<double> on_host(const TensorView& view) {
  const std::span<const std::int64_t> shape(view.shape.data(), static_cast<std::size_t>(view.rank));
  std::vector<std::byte> bytes(static_cast<std::size_t>(view.elements()) * size_of(view.dtype));
  const TensorView here(bytes.data(), view.dtype, shape);
  copy(here, view);
  if (view.dtype == DType::i64) return {static_cast<double>(*static_cast<const std::int64_t*>(here.data))};
  return values_of(here);
}
inline void put(const TensorView& to, const std::vector<float>& values) {
  copy(to, ConstTensorView(values.data(), DType::f32, {static_cast<std::int64_t>(values.size())}));
}

/// Everything that a checkpoint holds.
inline std::vector<std::vector<double>> state_of(const Model& model) {
  std::vector<std::vector<double>> out{on_host(model.optimizer_step()), on_host(model.loss_scaler())};
  for (const Parameter& p : model.parameters())
    for (const TensorView& view : {p.value, p.m, p.v}) out.push_back(on_host(view));
  return out;
}
inline void hand_on(const Model& from, Model& to) {
  const Stream stream{from.optimizer_step().device};
  copy(to.optimizer_step(), from.optimizer_step(), stream);
  copy(to.loss_scaler(), from.loss_scaler(), stream);
  for (std::size_t i = 0; i < from.parameters().size(); ++i) {
    const Parameter &a = from.parameters()[i], &b = to.parameters()[i];
    copy(b.value, a.value, stream), copy(b.m, a.m, stream), copy(b.v, a.v, stream);
  }
  to.weights_changed();
}

/// 128 wide, so that attention has two heads of 64.
inline ModelDescription small(std::int64_t layers, DType dtype) {
  return {.hidden = 128, .layers = layers, .vocabulary = 90, .dropout = 0.2F, .label_smoothing = 0.1F, .dtype = dtype};
}
inline Model model_on(Device device, const ModelDescription& description) {
  Model model(description, device, {});
  model.initialise(3);
  return model;
}
/// Ragged pairs; two batches of one `kind` have the same sizes.
inline Batch batch_like(int kind, std::uint64_t seed) {
  const std::pair<int, int> first[] = {{5, 7}, {3, 2}, {9, 6}, {8, 9}, {1, 1}}, second[] = {{12, 14}, {2, 11}, {7, 3}};
  return batch_of(kind == 0 ? random_examples(first, 90, seed) : random_examples(second, 90, seed));
}

/// A run of steps over batches of two sizes, as a trainer makes them: the rate falls with each step that is not skipped.
class Steps {
 public:
  explicit Steps(Model& model, std::int64_t given = 0) : model_(model), given_(given) {}
  static double rate(std::int64_t good) { return 0.01 / static_cast<double>(1 + good); }
  void ahead(int count) {
    for (int i = 0; i < count; ++i, ++given_) {
      std::vector<double> rates;
      for (std::int64_t k = 0; k <= most_steps_ahead; ++k) rates.push_back(rate(std::max<std::int64_t>(given_ - skipped_ - k, 0)));
      model_.train_step(batch(), {.seed = 5, .step = static_cast<std::uint64_t>(given_), .clip = 1, .rates = rates});
      keep(model_.take_results(false));
    }
  }
  void finish() { keep(model_.take_results(true)); }
  /// The same, each step waited for, and forward, backward and optimiser as calls of their own.
  void alone(int count) {
    for (int i = 0; i < count; ++i, ++given_) {
      const LossSum loss = model_.forward_backward(batch(), 5, static_cast<std::uint64_t>(given_));
      const double norm = model_.apply(rate(given_ - skipped_), 1);
      keep({{.loss = loss, .norm = norm, .skipped = !std::isfinite(norm)}});
    }
  }
  std::vector<StepResult> results;
  std::int64_t skipped() const { return skipped_; }

 private:
  Batch batch() const { return batch_like(given_ % 3 == 1 ? 1 : 0, static_cast<std::uint64_t>(given_)); }
  void keep(const std::vector<StepResult>& come) {
    for (const StepResult& result : come) skipped_ += result.skipped ? 1 : 0, results.push_back(result);
  }
  Model& model_;
  std::int64_t given_, skipped_ = 0;
};

inline void expect_same_results(const std::vector<StepResult>& a, const std::vector<StepResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss.loss, b[i].loss.loss) << i;
    EXPECT_EQ(a[i].loss.tokens, b[i].loss.tokens) << i;
    EXPECT_EQ(a[i].skipped, b[i].skipped) << i;
    EXPECT_TRUE(a[i].skipped || a[i].norm == b[i].norm) << i;
  }
}

/// Steps that run ahead of the host (on a card as graphs from the second of a size on) have the bits of steps that it waits for.
inline void check_steps_ahead(Device device, DType dtype) {
  Model ahead = model_on(device, small(2, dtype)), alone = model_on(device, small(2, dtype));
  Steps a(ahead), b(alone);
  a.ahead(14), a.finish();
  b.alone(14);
  expect_same_results(a.results, b.results);
  EXPECT_EQ(state_of(ahead), state_of(alone));
  EXPECT_EQ(on_host(ahead.optimizer_step())[0], 14);
}

/// A model that takes over another's state goes on with its bits.
inline void check_resume(Device device, DType dtype) {
  Model whole = model_on(device, small(2, dtype)), first = model_on(device, small(2, dtype)), second(small(2, dtype), device, {});
  Steps a(whole), b(first);
  a.ahead(10), a.finish();
  b.ahead(6), b.finish();
  hand_on(first, second);
  Steps rest(second, 6);
  rest.ahead(4), rest.finish();
  EXPECT_EQ(state_of(whole), state_of(second));
}

/// A scale that f16 cannot hold: the steps are skipped until it has been halved often enough, the weights stay meanwhile, and the
/// schedule does not move.
inline void check_overflow(Device device) {
  Model ahead = model_on(device, small(2, DType::f16)), alone = model_on(device, small(2, DType::f16));
  const float huge = 0x1p24F * first_loss_scale;
  for (Model* model : {&ahead, &alone}) put(model->loss_scaler(), {huge, 1999, 0}), model->weights_changed();
  const auto before = state_of(ahead);
  ahead.train_step(batch_like(0, 0), {.seed = 5, .step = 0, .clip = 1, .rates = std::vector<double>{0.01}});
  const std::vector<StepResult> come = ahead.take_results(true);
  ASSERT_EQ(come.size(), 1U);
  EXPECT_TRUE(come[0].skipped);
  EXPECT_TRUE(std::isfinite(come[0].loss.loss));
  EXPECT_EQ(come[0].loss_scale, huge / 2);
  auto after = state_of(ahead);
  EXPECT_EQ(after[1], (std::vector<double>{huge / 2, 0, 1}));
  after[1] = before[1];
  EXPECT_EQ(after, before);

  put(ahead.loss_scaler(), {huge, 1999, 0}), ahead.weights_changed();
  Steps a(ahead), b(alone);
  a.ahead(40), a.finish();
  b.alone(40);
  EXPECT_GT(a.skipped(), most_steps_ahead);  // more than the host could know of
  EXPECT_LT(a.skipped(), 40);
  EXPECT_EQ(on_host(ahead.optimizer_step())[0], 40 - static_cast<double>(a.skipped()));
  expect_same_results(a.results, b.results);
  EXPECT_EQ(state_of(ahead), state_of(alone));
}

}  // namespace everglow::gnmt::test
