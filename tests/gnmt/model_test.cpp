// The translation model: training, evaluation, padding, dropout, incremental decoding, and what it says of itself.
#include "gnmt/model_batches.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace everglow::gnmt {
namespace {

using everglow::test::unit_roundoff;

class ModelLayers : public testing::TestWithParam<std::int64_t> {};

/// A model whose f32 rows may be any; larger weights than at the start of a training make differences show.
Model lively(const ModelDescription& description, double factor, std::uint64_t seed = 3) {
  Model model(description, Device::cpu(), {});
  model.initialise(seed);
  for (const Parameter& parameter : model.parameters())
    for (std::int64_t i = 0; i < parameter.value.elements(); ++i) {
      if (description.dtype == DType::f64)
        static_cast<double*>(parameter.value.data)[i] *= factor;
      else
        static_cast<float*>(parameter.value.data)[i] *= static_cast<float>(factor);
    }
  return model;
}

/// Rounding moves each activation by at most u x (terms of its sums) x its size; over the layers the moves add up while sigmoids,
/// tanh (slopes of at most 1) and softmax do not enlarge them beyond the weights' row sums, which are below 1 here (6 or 12 inputs
/// of
/// +-0.1): with at most 40 layer applications on a path and 64 roundings in each, a log-probability moves by less than 40 x 64 u.
constexpr double path_bound = 40 * 64;

TEST_P(ModelLayers, EachStepGivesTheProbabilitiesOfTheWholeTarget_sanitize) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const ModelDescription description = test::tiny(GetParam(), dtype);
    ModelDescription plain = description;
    plain.label_smoothing = 0;
    Model model = lively(plain, 1);
    const Batch batch = test::ragged_batch(description.vocabulary);
    const auto state = model.start(batch, 1);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(batch.rows));
    std::iota(rows.begin(), rows.end(), 0);
    double sum = 0;
    for (std::int64_t t = 0; t < batch.target_steps; ++t) {
      const auto at = static_cast<std::size_t>(t * batch.rows);
      const ConstTensorView view = model.step(*state, std::span(batch.decoder_input).subspan(at, rows.size()), rows);
      ASSERT_EQ(view.dtype, DType::f32);
      for (std::size_t b = 0; b < rows.size(); ++b) {
        const float* const row = static_cast<const float*>(view.data) + static_cast<std::int64_t>(b) * description.vocabulary;
        double total = 0;
        for (std::int64_t v = 0; v < description.vocabulary; ++v) total += std::exp(static_cast<double>(row[v]));
        EXPECT_NEAR(total, 1, 4 * static_cast<double>(description.vocabulary) * unit_roundoff(DType::f32));
        const std::int32_t target = batch.targets[at + b];
        if (target != pad_id) sum -= static_cast<double>(row[target]);
      }
    }
    const LossSum loss = model.evaluate(batch);
    EXPECT_EQ(loss.tokens, batch.target_tokens);
    // The step's log-probabilities leave as f32 in both cases: |log p| < 4 each.
    EXPECT_NEAR(sum, loss.loss,
                static_cast<double>(loss.tokens) * (path_bound * unit_roundoff(dtype) + 4 * unit_roundoff(DType::f32)));
  }
}

TEST_P(ModelLayers, PaddingChangesNothing_sanitize) {
  const std::pair<int, int> lengths[] = {{2, 3}, {7, 6}, {1, 1}};
  const ModelDescription description = test::tiny(GetParam());
  Model model = lively(description, 1);
  const std::vector<Example> examples = test::random_examples(lengths, description.vocabulary, 4);
  double alone = 0;
  for (const Example& example : examples) alone += model.evaluate(test::batch_of(std::span(&example, 1))).loss;
  const LossSum together = model.evaluate(test::batch_of(examples));
  EXPECT_NEAR(alone, together.loss, static_cast<double>(together.tokens) * path_bound * unit_roundoff(DType::f32));
}

TEST_P(ModelLayers, WithoutDropoutTrainingAndEvaluationSeeTheSameLoss) {
  Model model = lively(test::tiny(GetParam()), 1);
  const Batch batch = test::ragged_batch(11);
  const LossSum trained = model.forward_backward(batch, 1, 1), evaluated = model.evaluate(batch);
  EXPECT_EQ(trained.tokens, evaluated.tokens);
  EXPECT_NEAR(trained.loss, evaluated.loss, static_cast<double>(trained.tokens) * path_bound * unit_roundoff(DType::f32));
}

TEST_P(ModelLayers, TheSameStepTwiceGivesTheSameBits_sanitize) {
  Model model = lively(test::tiny(GetParam(), DType::f32, 0.3F), 1);
  const Batch batch = test::ragged_batch(11), other = test::ragged_batch(11, 8);
  const LossSum first = model.forward_backward(batch, 5, 17);
  const std::vector<std::byte> gradients = test::bytes_of(model, &Parameter::gradient);
  model.forward_backward(other, 5, 18);
  EXPECT_NE(gradients, test::bytes_of(model, &Parameter::gradient));
  EXPECT_EQ(first.loss, model.forward_backward(batch, 5, 17).loss);
  EXPECT_EQ(gradients, test::bytes_of(model, &Parameter::gradient));
}

TEST_P(ModelLayers, MasksDependOnSeedAndStepAlone) {
  Model model = lively(test::tiny(GetParam(), DType::f32, 0.3F), 5);
  const Batch batch = test::ragged_batch(11);
  std::set<double> losses;
  for (const std::uint64_t seed : {1, 2})
    for (const std::uint64_t step : {1, 2, 3}) losses.insert(model.forward_backward(batch, seed, step).loss);
  EXPECT_EQ(losses.size(), 6U);
}

TEST_P(ModelLayers, LearnsASmallBatchByHeart_sanitize) {
  ModelDescription description = test::tiny(GetParam());
  description.hidden = 16, description.label_smoothing = 0;
  Model model(description, Device::cpu(), {});
  model.initialise(1);
  const Batch batch = test::ragged_batch(description.vocabulary);
  const auto mean = [](const LossSum& sum) { return sum.loss / static_cast<double>(sum.tokens); };
  const double before = mean(model.evaluate(batch));
  EXPECT_NEAR(before, std::log(11.0), 0.3);  // nearly uniform at first
  for (std::uint64_t step = 0; step < 200; ++step) {
    model.forward_backward(batch, 1, step);
    EXPECT_GT(model.apply(0.02, 5), 0);
  }
  EXPECT_LT(mean(model.evaluate(batch)), 0.1 * before);
  EXPECT_EQ(*static_cast<const std::int64_t*>(model.optimizer_step().data), 200);
}

TEST_P(ModelLayers, AttentionIsADistributionOverTheSource_sanitize) {
  Model model = lively(test::tiny(GetParam()), 5);
  const std::pair<int, int> lengths[] = {{4, 3}};
  const Batch pair = test::batch_of(test::random_examples(lengths, 11, 6));
  const auto attention = model.attention(pair);
  ASSERT_EQ(attention.size(), 4U);  // the end included
  for (const std::vector<double>& row : attention) {
    ASSERT_EQ(row.size(), 5U);
    // p = exp(score - lse): both are sums of 6 terms in f32, below 8 in size.
    EXPECT_NEAR(std::accumulate(row.begin(), row.end(), 0.0), 1, 8 * 16 * unit_roundoff(DType::f32));
    for (const double p : row) EXPECT_GE(p, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ModelLayers, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST(Model, AnEmptyBatchHasNoLoss) {
  Model model = lively(test::tiny(2), 1);
  const Batch batch;
  EXPECT_EQ(model.evaluate(batch).tokens, 0);
  EXPECT_EQ(model.forward_backward(batch, 1, 1).loss, 0);
}

TEST(Model, InitialisationIsUniformAndRepeatable) {
  const ModelDescription description{.hidden = 64, .layers = 2, .vocabulary = 50};
  Model model(description, Device::cpu(), {}), twin(description, Device::cpu(), {});
  model.initialise(12), twin.initialise(12);
  EXPECT_EQ(test::bytes_of(model, &Parameter::value), test::bytes_of(twin, &Parameter::value));
  twin.initialise(13);
  EXPECT_NE(test::bytes_of(model, &Parameter::value), test::bytes_of(twin, &Parameter::value));
  std::set<std::string> names;
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    double largest = 0, square = 0;
    for (const double value : test::values_of(parameter.value))
      largest = std::max(largest, std::fabs(value)), square += value * value;
    EXPECT_LE(largest, 0.1) << parameter.name;
    // The mean of n squares of a uniform number within +-0.1 is 0.01 / 3 with deviation 0.003 / sqrt(n); n is at least 50.
    const auto n = static_cast<double>(parameter.value.elements());
    EXPECT_NEAR(square / n, 0.01 / 3, 6 * 0.003 / std::sqrt(n)) << parameter.name;
    for (const double value : test::values_of(parameter.m)) ASSERT_EQ(value, 0);
  }
  EXPECT_TRUE(names.contains("encoder.0.weight_ih_reverse") && names.contains("decoder.1.bias_hh") &&
              names.contains("attention.key"));
}

TEST(Model, ManyShapesShareOneMemory) {
  Model model = lively(test::tiny(3, DType::f32, 0.2F), 1);
  const Batch first = test::ragged_batch(11);
  const LossSum loss = model.forward_backward(first, 1, 1);
  const std::vector<std::byte> gradients = test::bytes_of(model, &Parameter::gradient);
  for (int length = 1; length < 80; ++length) {  // more shapes than are kept, larger and larger
    const std::pair<int, int> lengths[] = {{length, 80 - length}};
    model.forward_backward(test::batch_of(test::random_examples(lengths, 11, 1)), 1, 1);
  }
  EXPECT_EQ(loss.loss, model.forward_backward(first, 1, 1).loss);
  EXPECT_EQ(gradients, test::bytes_of(model, &Parameter::gradient));
}

TEST(Model, NotFiniteGradientsChangeNothing) {
  Model model = lively(test::tiny(2), 1);
  model.forward_backward(test::ragged_batch(11), 1, 1);
  static_cast<float*>(model.parameters()[0].gradient.data)[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::byte> values = test::bytes_of(model, &Parameter::value);
  EXPECT_FALSE(std::isfinite(model.apply(0.1, 5)));
  EXPECT_EQ(values, test::bytes_of(model, &Parameter::value));
}

TEST(Model, SaysWhichRowEachLayerTook) {
  Model model = lively(test::tiny(2), 1);
  EXPECT_TRUE(model.choices().empty());
  model.forward_backward(test::ragged_batch(11), 1, 1);
  std::set<std::string> layers;
  for (const LayerChoice& choice : model.choices()) {
    EXPECT_TRUE(layers.insert(choice.layer).second) << choice.layer;
    EXPECT_FALSE(choice.explanation.kernel.empty()) << choice.layer;
  }
  EXPECT_TRUE(layers.contains("encoder 0 (recurrent 6 -> 6, both ways)"));
  EXPECT_TRUE(layers.contains("decoder 1 (recurrent 12 -> 6)"));
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Model, ErrorsNameArgumentExpectedAndActual) {
  const auto make = [](const ModelDescription& description) { Model(description, Device::cpu(), {}); };
  EXPECT_EQ(error_of([&] { make({.hidden = 0, .vocabulary = 9}); }), "[gnmt.model] hidden: expected 1 or more, got 0");
  EXPECT_EQ(error_of([&] { make({.hidden = 200, .vocabulary = 9}); }),
            "[gnmt.model] hidden: expected a multiple of its 3 heads, got 200");
  EXPECT_EQ(error_of([&] { make({.hidden = 8, .vocabulary = 3}); }), "[gnmt.model] vocabulary: expected 4 or more, got 3");
  EXPECT_EQ(error_of([&] { make({.hidden = 8, .vocabulary = 9, .dtype = DType::i32}); }),
            "[gnmt.model] dtype: expected f32, f16, bf16 or f64, got i32");
  Model model = lively(test::tiny(2), 1);
  Batch batch = test::ragged_batch(11);
  const auto state = model.start(batch, 2);
  const std::vector<std::int32_t> tokens(6, bos_id), mixed{0, 1, 2, 1, 4, 5}, far{0, 1, 2, 3, 4, 6};
  EXPECT_EQ(error_of([&] { model.step(*state, std::span(tokens).first(5), std::span(mixed).first(5)); }),
            "[gnmt.step] tokens: expected a multiple of 2 up to 6, got 5");
  EXPECT_EQ(error_of([&] { model.step(*state, tokens, mixed); }),
            "[gnmt.step] parents: expected rows of one sentence in each group of 2, sentences in order");
  EXPECT_EQ(error_of([&] { model.step(*state, tokens, far); }), "[gnmt.step] parents: expected 0 ... 5, got 6");
  batch.targets.pop_back();
  EXPECT_EQ(error_of([&] { model.evaluate(batch); }), "[gnmt.evaluate] targets: expected 15 values, got 14");
}

}  // namespace
}  // namespace everglow::gnmt
