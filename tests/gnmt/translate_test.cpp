// Beam search, against greedy and exhaustive searches written out here by teacher forcing, which share no code with it.
#include "gnmt/model_batches.hpp"

#include <everglow/gnmt/translate.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace everglow::gnmt {
namespace {

using Pieces = std::vector<std::int32_t>;

Model lively(std::int64_t layers, std::int64_t vocabulary, double factor, std::uint64_t seed) {
  ModelDescription description = test::tiny(layers);
  description.vocabulary = vocabulary, description.label_smoothing = 0;
  Model model(description, Device::cpu(), {});
  model.initialise(seed);
  for (const Parameter& parameter : model.parameters())
    for (std::int64_t i = 0; i < parameter.value.elements(); ++i)
      static_cast<float*>(parameter.value.data)[i] *= static_cast<float>(factor);
  return model;
}

/// log P(target + EOS | source) by the whole-sequence evaluation.
double log_probability(Model& model, const Pieces& source, const Pieces& target) {
  const Example example{source, target};
  return -model.evaluate(test::batch_of(std::span(&example, 1))).loss;
}

double normalised(Model& model, const Pieces& source, const Pieces& target, double alpha) {
  return log_probability(model, source, target) / std::pow((5 + static_cast<double>(target.size() + 1)) / 6, alpha);
}

/// Takes the likeliest piece again and again, one sentence alone, one row.
Pieces greedy(Model& model, const Pieces& source, std::int64_t most) {
  const auto state = model.start(make_source_batch(std::span(&source, 1)), 1);
  Pieces out;
  std::int32_t token = bos_id;
  const std::int32_t row = 0;
  while (true) {
    const ConstTensorView view = model.step(*state, std::span(&token, 1), std::span(&row, 1));
    const float* const p = static_cast<const float*>(view.data);
    token = unk_id;
    for (std::int32_t v = unk_id; v < view.size(1); ++v)
      if (v != bos_id && p[v] > p[token]) token = v;
    if (token == eos_id || static_cast<std::int64_t>(out.size()) == most) return out;
    out.push_back(token);
  }
}

std::vector<Pieces> some_sources(std::int64_t vocabulary, std::span<const int> lengths) {
  std::vector<std::pair<int, int>> sizes;
  for (const int length : lengths) sizes.emplace_back(length, 0);
  std::vector<Pieces> out;
  for (Example& example : test::random_examples(sizes, vocabulary, 2)) out.push_back(std::move(example.source));
  return out;
}

constexpr int mixed_lengths[] = {3, 0, 7, 1, 5, 5, 2, 0, 9, 4};

TEST(Translate, BeamOneIsGreedyWhateverStandsBesideIt_sanitize) {
  for (const std::int64_t layers : {1, 2, 3}) {
    Model model = lively(layers, 11, 9, 21 + static_cast<std::uint64_t>(layers));
    const std::vector<Pieces> sources = some_sources(11, mixed_lengths);
    for (const std::int64_t tokens : {1, 30, 2000}) {
      const auto found = search(model, sources, {.beam = 1, .max_length = 12, .batch_tokens = tokens});
      ASSERT_EQ(found.size(), sources.size());
      for (std::size_t i = 0; i < sources.size(); ++i)
        EXPECT_EQ(found[i], sources[i].empty() ? Pieces{} : greedy(model, sources[i], 12))
            << "source " << i << ", layers " << layers;
    }
  }
}

TEST(Translate, AWideBeamFindsTheBestOfAllTargets_sanitize) {
  constexpr double alpha = 0.6;
  const std::int32_t pieces[] = {unk_id, 4, 5};  // a vocabulary of 6 without PAD, BOS and EOS
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    Model model = lively(2, 6, 12, seed);
    const int lengths[] = {3};
    const Pieces source = some_sources(6, lengths)[0];
    std::vector<Pieces> all{{}};
    for (std::size_t i = 0; i < all.size() && all[i].size() < 3; ++i)
      for (const std::int32_t piece : pieces) {
        Pieces longer = all[i];
        longer.push_back(piece);
        all.push_back(std::move(longer));
      }
    ASSERT_EQ(all.size(), 1U + 3 + 9 + 27);
    double best = -1e30;
    for (const Pieces& target : all) best = std::max(best, normalised(model, source, target, alpha));
    // A beam of 40 holds every one of the 27 longest prefixes, so nothing is ever cut.
    const Pieces found = search(model, std::span(&source, 1), {.beam = 40, .length_penalty = alpha, .max_length = 3})[0];
    // Two searches may differ where scores tie within the rounding of f32 sums over 4 pieces.
    EXPECT_NEAR(normalised(model, source, found, alpha), best, 1e-4) << "seed " << seed;
  }
}

TEST(Translate, ABeamIsNoWorseThanGreedyOnTheWhole) {
  Model model = lively(2, 30, 25, 5);
  std::vector<int> lengths(40);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = 1 + static_cast<int>(i % 9);
  const std::vector<Pieces> sources = some_sources(30, lengths);
  const auto one = search(model, sources, {.beam = 1, .length_penalty = 0, .max_length = 10});
  const auto five = search(model, sources, {.beam = 5, .length_penalty = 0, .max_length = 10});
  double sum_one = 0, sum_five = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sum_one += log_probability(model, sources[i], one[i]);
    sum_five += log_probability(model, sources[i], five[i]);
  }
  EXPECT_GT(sum_five, sum_one);
}

TEST(Translate, ResultsStandInOrderAndDoNotDependOnTheBatches_sanitize) {
  Model model = lively(3, 30, 9, 6);
  const std::vector<Pieces> sources = some_sources(30, mixed_lengths);
  const auto together = search(model, sources, {.beam = 4, .max_length = 8});
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto alone = search(model, std::span(&sources[i], 1), {.beam = 4, .max_length = 8})[0];
    EXPECT_EQ(alone, together[i]) << "source " << i;
    EXPECT_LE(together[i].size(), 8U);
    for (const std::int32_t piece : together[i]) EXPECT_TRUE(piece != pad_id && piece != bos_id && piece != eos_id);
  }
}

/// Rows take over their parents' states, and sentences leave: against states that were never disturbed.
TEST(Translate, ParentsCarryTheirStateAlong_sanitize) {
  Model model = lively(3, 11, 5, 8);
  const int lengths[] = {2, 5, 3};
  const std::vector<Pieces> sources = some_sources(11, lengths);
  const auto state = model.start(make_source_batch(sources), 2);
  model.step(*state, Pieces(6, bos_id), Pieces{0, 1, 2, 3, 4, 5});
  model.step(*state, Pieces{4, 5, 6, 7, 8, 9}, Pieces{0, 0, 2, 2, 4, 4});
  const ConstTensorView view = model.step(*state, Pieces{9, 8, 7, 6}, Pieces{3, 2, 5, 5});  // the first sentence has left
  ASSERT_EQ(view.size(0), 4);
  const std::pair<std::size_t, Pieces> paths[] = {
      {1, {bos_id, 7, 9}}, {1, {bos_id, 6, 8}}, {2, {bos_id, 9, 7}}, {2, {bos_id, 9, 6}}};
  for (std::size_t r = 0; r < 4; ++r) {
    const auto fresh = model.start(make_source_batch(std::span(&sources[paths[r].first], 1)), 1);
    const Pieces row{0};
    ConstTensorView expected;
    for (const std::int32_t token : paths[r].second) expected = model.step(*fresh, std::span(&token, 1), row);
    for (std::int64_t v = 0; v < 11;
         ++v)  // weights within +-0.5 and three steps: a bound of 3 x 4 layers x 64 roundings x growth 8
      EXPECT_NEAR(static_cast<const float*>(view.data)[static_cast<std::int64_t>(r) * 11 + v],
                  static_cast<const float*>(expected.data)[v], 3 * 4 * 64 * 8 * 0x1p-24)
          << "row " << r;
  }
}

TEST(Translate, NoSourcesNoResults) {
  Model model = lively(2, 11, 1, 1);
  EXPECT_TRUE(search(model, {}, {}).empty());
  const std::vector<Pieces> blank(2);
  EXPECT_EQ(search(model, blank, {}), blank);
}

TEST(Translate, EndsThatComeEarlyDoNotStopABetterLongerTarget) {
  // Every step has the same distribution: piece 4 is likely and the end is always second, so two short hypotheses end at once. With
  // alpha 1 the mean a piece counts, and the longest target is best.
  Model model({.hidden = 4, .layers = 1, .vocabulary = 6}, Device::cpu(), {});
  for (const Parameter& parameter : model.parameters()) {
    auto* const values = static_cast<float*>(parameter.value.data);
    std::fill_n(values, parameter.value.elements(), 0.0F);
    if (parameter.name != "classifier.bias") continue;
    std::fill_n(values, 6, -20.0F);
    values[4] = 0, values[eos_id] = -3;
  }
  const int lengths[] = {3};
  const std::vector<Pieces> found = search(model, some_sources(6, lengths), {.beam = 2, .length_penalty = 1, .max_length = 20});
  EXPECT_EQ(found.at(0), Pieces(20, 4));
}

TEST(Translate, NotANumberEndsTheSearch) {
  Model model = lively(2, 11, std::nan(""), 1);
  const int lengths[] = {2, 3};
  for (const Pieces& pieces : search(model, some_sources(11, lengths), {.beam = 3})) EXPECT_TRUE(pieces.empty());
}

}  // namespace
}  // namespace everglow::gnmt
