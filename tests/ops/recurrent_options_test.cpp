// What the options of a recurrent layer mean, apart from numbers: a stack is its layers one after the other, a reset is a new
// beginning, dropout drops what Philox names, and the cells compute what torch's do.
#include "cases/proof/recurrent_problem.hpp"
#include "core/philox.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace everglow {
namespace {

using proof::HostWeights;
using proof::RecurrentProblem;
using proof::RecurrentResult;
using test::HostTensor;

PlanOptions same_bits_of(const std::string& row) { return {.threads = 2, .force = row, .deterministic = true}; }

/// The elements [begin, begin + part.elements()) of a dense order.
void put_range(HostTensor& part, const HostTensor& all, std::int64_t begin) {
  for (std::int64_t i = 0; i < part.const_view().elements(); ++i) part.put(i, all.at(begin + i));
}

std::vector<double> range(const HostTensor& all, std::int64_t begin, std::int64_t count) {
  const auto values = all.values();
  return {values.begin() + begin, values.begin() + begin + count};
}

/// One layer of a stack as a problem of its own.
RecurrentProblem layer_of(const RecurrentProblem& p, std::int64_t layer, const HostTensor& x) {
  RecurrentProblem out = p;
  const std::int64_t directions = p.description.directions();
  out.description.layers = 1, out.description.dropout = 0, out.description.inputs = x.const_view().size(2);
  out.x = x;
  for (HostTensor* tensor : {&out.h0, &out.c0, &out.dhn, &out.dcn}) {
    if (!tensor->const_view().given()) continue;
    HostTensor part(p.description.dtype, {directions, p.sizes.batch, tensor->const_view().size(2)});
    put_range(part, *tensor, layer * part.const_view().elements());
    *tensor = part;
  }
  out.weights.assign(p.weights.begin() + layer * directions, p.weights.begin() + (layer + 1) * directions);
  return out;
}

/// The mask of a layer's output applied to it or to its gradient, rounded as the layer does.
HostTensor masked(const RecurrentProblem& p, std::int64_t layer, const HostTensor& from) {
  HostTensor out(p.description.dtype, {p.sizes.steps, p.sizes.batch, p.width()});
  const std::int64_t count = out.const_view().elements();
  const double probability = p.description.dropout;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<std::uint64_t>(layer * count + i);
    const bool keep = dropout_keeps(p.dropout_seed, p.dropout_offset, element, dropout_threshold(probability));
    out.put(i, keep ? from.at(i) * static_cast<float>(1 / (1 - probability)) : 0);
  }
  return out;
}

/// With p = 1/2 the scale is 2, so that masking is exact; the reference in f64 divides in f64.
TEST(RecurrentOptions, AStackIsItsLayersOneAfterTheOther_sanitize) {
  for (const std::string cell : {"lstm projection=6", "lstm", "gru", "gru_reset_before", "tanh", "relu"})
    for (const std::string more : {"", " dropout=0.5", " dropout=0.5 lengths=random resets=1 bidirectional=1"}) {
      const RecurrentProblem p(cases::parse("recurrent steps=4 batch=3 inputs=5 hidden=9 layers=3 dense=1 cell=" + cell + more));
      for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
        if (!proof::accepts(row, p)) continue;
        SCOPED_TRACE(row + ' ' + cell + more);
        const RecurrentResult whole = proof::run_recurrent(p, same_bits_of(row));
        std::vector<RecurrentProblem> layers;
        std::vector<RecurrentResult> results;
        for (std::int64_t i = 0; i < 3; ++i) {
          layers.push_back(layer_of(p, i, i == 0 ? p.x : masked(p, i - 1, results.back().y)));
          results.push_back(proof::run_recurrent(layers.back(), same_bits_of(row)));
        }
        EXPECT_EQ(results[2].y.values(), whole.y.values());
        for (std::size_t i = 3; i-- > 0;) {
          if (i < 2) layers[i].dy = masked(p, static_cast<std::int64_t>(i), results[i + 1].dx);
          results[i] = proof::run_recurrent(layers[i], same_bits_of(row));
          const auto count = results[i].hn.const_view().elements(), first = static_cast<std::int64_t>(i) * count;
          EXPECT_EQ(results[i].hn.values(), range(whole.hn, first, count)) << "layer " << i;
          EXPECT_EQ(results[i].dh0.values(), range(whole.dh0, first, count)) << "layer " << i;
          for (std::size_t d = 0; d < results[i].dweights.size(); ++d) {
            const HostWeights &a = results[i].dweights[d], &b = whole.dweights[i * results[i].dweights.size() + d];
            EXPECT_EQ(a.w_ih.values(), b.w_ih.values()) << "layer " << i;
            EXPECT_EQ(a.w_hh.values(), b.w_hh.values()) << "layer " << i;
            EXPECT_EQ(a.b_hh.values(), b.b_hh.values()) << "layer " << i;
          }
        }
        EXPECT_EQ(results[0].dx.values(), whole.dx.values());
      }
    }
}

/// A sequence of 5 steps cut between 1 and 2 gives the bits of one of 2 steps and one of 3: forward, the second begins with zeros;
/// in reverse, the first does. All gradients but those of the weights are those of the parts.
TEST(RecurrentOptions, AResetIsANewBeginning_sanitize) {
  for (const std::string cell : {"lstm projection=6", "lstm", "gru", "gru_reset_before", "tanh", "relu"}) {
    const std::string sizes = " batch=3 inputs=5 hidden=19 bidirectional=1 dense=1 cell=" + cell;
    RecurrentProblem p(cases::parse("recurrent steps=5 resets=1" + sizes));
    p.resets.fill(0);
    for (std::int64_t b = 0; b < 3; ++b) p.resets.put(2 * 3 + b, 255);
    for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
      if (!proof::accepts(row, p)) continue;
      SCOPED_TRACE(row + ' ' + cell);
      const RecurrentResult whole = proof::run_recurrent(p, same_bits_of(row));
      std::int64_t first = 0;
      for (const std::int64_t steps : {2, 3}) {
        RecurrentProblem part(cases::parse("recurrent steps=" + std::to_string(steps) + sizes));
        part.weights = p.weights;
        put_range(part.x, p.x, first * 3 * 5), put_range(part.dy, p.dy, first * 3 * p.width());
        // forward enters the first part with h0 and leaves the second with hn; in reverse the other way round
        const std::int64_t outside = steps == 2 ? 1 : 0, inside = 1 - outside;
        const auto clear = [&](HostTensor& tensor, std::int64_t direction) {
          if (!tensor.const_view().given()) return;
          const std::int64_t count = tensor.const_view().elements() / 2;
          for (std::int64_t i = 0; i < count; ++i) tensor.put(direction * count + i, 0);
        };
        clear(part.h0, outside), clear(part.c0, outside), clear(part.dhn, inside), clear(part.dcn, inside);
        const RecurrentResult r = proof::run_recurrent(part, same_bits_of(row));
        EXPECT_EQ(r.y.values(), range(whole.y, first * 3 * p.width(), steps * 3 * p.width())) << steps;
        EXPECT_EQ(r.dx.values(), range(whole.dx, first * 3 * 5, steps * 3 * 5)) << steps;
        const std::int64_t count = r.hn.const_view().elements() / 2;
        EXPECT_EQ(range(r.hn, outside * count, count), range(whole.hn, outside * count, count)) << steps;
        EXPECT_EQ(range(r.dh0, inside * count, count), range(whole.dh0, inside * count, count)) << steps;
        first += steps;
      }
    }
  }
}

/// A flag at step 0 takes h0 and c0 from the forward direction and nothing from the reverse one; flags past a length say nothing.
TEST(RecurrentOptions, ResetsAtTheEndsOfARow_sanitize) {
  RecurrentProblem p(cases::parse("recurrent steps=4 batch=3 inputs=5 hidden=19 bidirectional=1 lengths=random resets=1 dense=1"));
  p.lengths.put(0, 2), p.lengths.put(1, 4), p.lengths.put(2, 0);
  p.x.uniform(1, -1, 1), p.dy.uniform(2, -1, 1);  // the case's own lengths are others
  p.resets.fill(0);
  RecurrentProblem flagged = p, zero = p;
  flagged.resets = HostTensor(DType::u8, {4, 3});
  flagged.resets.set({1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1});  // step 0 of every row, and all past a length
  zero.h0 = HostTensor(DType::f32, {2, 3, 19}), zero.c0 = HostTensor(DType::f32, {2, 3, 19});
  zero.h0.set(p.h0.values()), zero.c0.set(p.c0.values());
  for (std::int64_t i = 0; i < 2 * 19; ++i) zero.h0.put(i, 0), zero.c0.put(i, 0);  // forward, of the rows with a step
  for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
    if (!proof::accepts(row, p)) continue;
    SCOPED_TRACE(row);
    const auto actual = proof::run_recurrent(flagged, same_bits_of(row)).outputs();
    auto expected = proof::run_recurrent(zero, same_bits_of(row)).outputs();
    for (auto& [name, tensor] : expected)
      for (std::int64_t i = 0; (name == "dh0" || name == "dc0") && i < 2 * 19; ++i) tensor.put(i, 0);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(actual[i].second.values(), expected[i].second.values()) << expected[i].first;
  }
}

TEST(RecurrentOptions, DropoutCountersAndSeeds_sanitize) {
  const auto counters = [](const RecurrentDescription& d) { return RecurrentPlan(d, {5, 3}).dropout_counters(); };
  EXPECT_EQ(counters({.inputs = 4, .hidden = 7, .layers = 2}), 0U);
  EXPECT_EQ(counters({.inputs = 4, .hidden = 7, .layers = 2, .dropout = 0.5F}), 53U);  // 2 · 5 · 3 · 7 = 210 elements
  EXPECT_EQ(counters({.inputs = 4, .hidden = 7, .layers = 2, .bidirectional = true, .projection = 2, .dropout = 0.5F}), 30U);
  RecurrentProblem p(cases::parse("recurrent steps=4 batch=3 inputs=5 hidden=9 layers=2 dropout=0.5 training=0"));
  for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
    if (!proof::accepts(row, p)) continue;
    const auto first = proof::run_recurrent(p, same_bits_of(row)).y.values();
    RecurrentProblem other = p;
    other.dropout_seed += 1;
    EXPECT_NE(first, proof::run_recurrent(other, same_bits_of(row)).y.values()) << row;
    other = p, other.dropout_offset += 1;
    EXPECT_NE(first, proof::run_recurrent(other, same_bits_of(row)).y.values()) << row;
    RecurrentProblem one(cases::parse("recurrent steps=4 batch=3 inputs=5 hidden=9 dropout=0.5 training=0"));
    const auto with = proof::run_recurrent(one, same_bits_of(row)).y.values();
    one.description.dropout = 0;  // one layer has nothing to drop
    EXPECT_EQ(with, proof::run_recurrent(one, same_bits_of(row)).y.values()) << row;
  }
}

/// torch.nn.GRUCell, RNNCell and Cho's GRU worked out by hand for one unit: x = 0.5, h = -0.25, and each weight another number.
TEST(RecurrentOptions, CellsOfOneUnitByHand_sanitize) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  const double x = 0.5, h = -0.25;
  const double r = sigmoid(0.3 * x + 0.01 + 0.7 * h + 0.04), z = sigmoid(-0.4 * x + 0.02 - 0.8 * h + 0.05);
  const double after = std::tanh(0.5 * x + 0.03 + r * (0.9 * h + 0.06)), ahead = std::tanh(0.5 * x + 0.03 + 0.9 * (r * h) + 0.06);
  const double sum = 0.3 * x + 0.01 + 0.7 * h + 0.04;
  for (const auto& [cell, expected] : {std::pair<std::string, double>("gru", (1 - z) * after + z * h),
                                       {"gru_reset_before", (1 - z) * ahead + z * h},
                                       {"tanh", std::tanh(sum)},
                                       {"relu", std::max(sum, 0.0)}}) {
    RecurrentProblem p(cases::parse("recurrent training=0 dense=1 cell=" + cell));
    p.x.fill(x), p.h0.fill(h);
    HostWeights& w = p.weights[0];
    const std::vector<double> w_ih{0.3, -0.4, 0.5}, w_hh{0.7, -0.8, 0.9}, b_ih{0.01, 0.02, 0.03}, b_hh{0.04, 0.05, 0.06};
    w.w_ih.set(w_ih), w.w_hh.set(w_hh), w.b_ih.set(b_ih), w.b_hh.set(b_hh);
    for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
      if (!proof::accepts(row, p)) continue;
      const RecurrentResult result = proof::run_recurrent(p, same_bits_of(row));
      EXPECT_NEAR(result.y.at(0), expected, 1e-6) << cell << ' ' << row;  // f32: a few units of 2^-24
      EXPECT_EQ(result.y.at(0), result.hn.at(0)) << cell << ' ' << row;
    }
  }
}

/// The reset of a gru comes after the product: with R = 1, b' = 1 and h = -1 the candidate sees nothing of the state whatever r is.
TEST(RecurrentOptions, AGruResetsProductAndBias_sanitize) {
  RecurrentProblem p(cases::parse("recurrent training=0 dense=1 cell=gru"));
  p.x.fill(0), p.h0.fill(-1);
  p.weights[0].w_hh.fill(1), p.weights[0].b_hh.fill(1), p.weights[0].b_ih.fill(0);
  p.weights[0].b_ih.put(1, -200);  // z is zero, or e^-40 where exponents are bounded: h is the candidate
  for (const auto& row : kernels("recurrent", DeviceKind::cpu))
    if (proof::accepts(row, p)) {
      EXPECT_NEAR(0.0, proof::run_recurrent(p, same_bits_of(row)).y.at(0), 1e-17) << row;
    }
}

}  // namespace
}  // namespace everglow
