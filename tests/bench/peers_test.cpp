// The peers of a card compute what our rows do, so that the comparison is of the same work.
#include "bench/cuda/peers.hpp"
#include "bench/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow::bench {
namespace {

class CardPeers : public testing::Test {
 protected:
  void SetUp() override {
    for (const BackendStatus& backend : backends())
      if (backend.name == "cuda" && !backend.usable) GTEST_SKIP() << backend.reason;
    open_device(settings_, Device::cuda(0));
    for (const std::string& missing : missing_peers()) GTEST_SKIP() << "not tested: peers on a card: " << missing;
  }
  /// What lies in a dense tensor of f32 on the card.
  std::vector<float> read(const TensorView& view) const {
    std::vector<float> out(static_cast<std::size_t>(view.elements()));
    settings_.stream().synchronize();
    copy(TensorView(out.data(), DType::f32, {view.elements()}), view.reshaped({view.elements()}));
    return out;
  }
  void zero(const TensorView& view) const {
    const std::vector<float> none(static_cast<std::size_t>(view.elements()));
    copy(view.reshaped({view.elements()}), ConstTensorView(none.data(), DType::f32, {view.elements()}));
  }
  static double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double out = 0;
    for (std::size_t i = 0; i < a.size(); ++i) out = std::isnan(b[i]) ? 1 : std::max(out, std::fabs(double{a[i]} - double{b[i]}));
    return out;
  }
  Settings settings_;
};

/// Sums of n products of magnitudes up to m differ by at most 2 n u m n from any other order, u = 2^-24.
double sum_bound(double n, double m) { return 2 * n * 0x1p-24 * m * n; }

TEST_F(CardPeers, CublasLtIsTheSameLinearLayer) {
  constexpr std::int64_t b = 32, i = 64, o = 48;
  const LinearDescription d{.inputs = i, .outputs = o, .training = true};
  const auto t = std::make_shared<LinearTensors>();
  TensorSets& s = t->sets;
  t->x = s.add(DType::f32, {b, i}, -1, 1), t->weight = s.add(DType::f32, {o, i}, -1, 1), t->bias = s.add(DType::f32, {o}, -1, 1);
  t->y = s.add(DType::f32, {b, o}), t->dy = s.add(DType::f32, {b, o}, -1, 1), t->dx = s.add(DType::f32, {b, i});
  t->dweight = s.add(DType::f32, {o, i}), t->dbias = s.add(DType::f32, {o});
  s.allocate(places(settings_));
  const LinearPlan plan(d, {b}, settings_.device);
  const Buffer scratch(plan.workspace_bytes(), settings_.where());
  const auto at = [&](int tensor) { return t->at(tensor, 0); };
  plan.forward({.x = at(t->x), .weight = at(t->weight), .bias = at(t->bias), .y = at(t->y)}, scratch, settings_.stream());
  LinearBackward back{.dy = at(t->dy), .x = at(t->x), .weight = at(t->weight), .dx = at(t->dx), .dweight = at(t->dweight)};
  back.dbias = at(t->dbias);
  plan.backward(back, scratch, settings_.stream());
  const int results[] = {t->y, t->dx, t->dweight, t->dbias};
  std::vector<std::vector<float>> ours;
  for (const int result : results) ours.push_back(read(at(result)));
  for (const int result : results) zero(at(result));
  const std::vector<Row> rows = cublaslt_linear(d, {b}, t, settings_);
  ASSERT_EQ(rows.size(), 1U);
  rows[0].passes[0].run(0), rows[0].passes[1].run(0);
  for (std::size_t n = 0; n < ours.size(); ++n)
    EXPECT_LE(largest_difference(ours[n], read(at(results[n]))), sum_bound(i + 1, 1)) << "result " << n;
}

/// One step: a gate differs by at most the sums' difference e (its slope is at most 1), c by (|c0|/4 + 1/4 + 1) e, h by 1/4 more.
/// Functions are good to 2^-21 on both sides.
TEST_F(CardPeers, CudnnIsTheSameRecurrentLayer) {
  constexpr std::int64_t b = 8, n = 64;
  for (const Cell cell : {Cell::lstm, Cell::gru}) {
    RecurrentDescription d{.cell = cell, .inputs = n, .hidden = n};
    d.training = true;
    const auto t = std::make_shared<RecurrentTensors>();
    TensorSets& s = t->sets;
    const auto random = [&](std::vector<std::int64_t> shape, double range) {
      return s.add(DType::f32, std::move(shape), -range, range);
    };
    const std::int64_t rows = gates_of(cell) * n;
    t->x = random({1, b, n}, 1), t->h0 = random({1, b, n}, 1), t->y = random({1, b, n}, 0), t->hn = random({1, b, n}, 0);
    t->c0 = t->cn = -1;
    if (cell == Cell::lstm) t->c0 = random({1, b, n}, 1), t->cn = random({1, b, n}, 0);
    t->dy = random({1, b, n}, 1), t->dx = random({1, b, n}, 0);
    t->weights.push_back({random({rows, n}, 0.125), random({rows, n}, 0.125), random({rows}, 0.125), random({rows}, 0.125)});
    s.allocate(places(settings_));
    const RecurrentPlan plan(d, {1, b}, settings_.device);
    const Buffer scratch(plan.workspace_bytes(), settings_.where());
    const ByteSets reserve(plan.reserve_bytes(), 1, settings_.where());
    const auto at = [&](int tensor) { return t->at(tensor, 0); };
    const RecurrentNumbers& w = t->weights[0];
    const RecurrentWeights weights{at(w.w_ih), at(w.w_hh), at(w.b_ih), at(w.b_hh), {}};
    RecurrentForward f{.x = at(t->x), .h0 = at(t->h0), .c0 = at(t->c0), .weights = {&weights, 1}, .y = at(t->y)};
    f.reserve = reserve.at(0);
    plan.forward(f, scratch, settings_.stream());
    const std::vector<float> ours = read(at(t->y));
    const double bound = 3 * sum_bound(2 * n + 2, 0.125) + 4 * 0x1p-21;
    const std::vector<Row> peers = cudnn_recurrent(d, {1, b}, t, settings_);
    EXPECT_FALSE(peers.empty());
    for (const Row& peer : peers) {
      zero(at(t->y));
      peer.passes[0].run(0);
      EXPECT_LE(largest_difference(ours, read(at(t->y))), bound) << peer.kernel;
      peer.passes[1].run(0);
      settings_.stream().synchronize();
    }
  }
}

}  // namespace
}  // namespace everglow::bench
