// The translation model on a card: a step beside the CPU's, graphs, the loss scale, resuming, and learning with decoding.
#include "cuda/card.hpp"
#include "gnmt/model_steps.hpp"
#include "support/tensor.hpp"

#include <cstdio>
#include <numeric>

namespace everglow::gnmt {
namespace {

class CudaGnmt : public everglow::test::OnCard, public testing::WithParamInterface<DType> {};
class CudaGnmtModel : public everglow::test::OnCard {};

/// The plain gradients of a step: without the loss scale.
struct Step {
  LossSum loss;
  std::vector<std::vector<double>> gradients;
};

Step step_of(Model& model, const Batch& batch) {
  Step out{.loss = model.forward_backward(batch, 5, 2), .gradients = {}};
  const double scale = model.description().dtype == DType::f16 ? test::on_host(model.loss_scaler())[0] : 1;
  for (const Parameter& p : model.parameters()) {
    out.gradients.push_back(test::on_host(p.gradient));
    for (double& g : out.gradients.back()) g /= scale;
  }
  return out;
}

/// The same weights in another model, as that one rounds them.
Model like(const Model& model, DType dtype, Device device) {
  ModelDescription description = model.description();
  description.dtype = dtype;
  Model out(description, device, {});
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const std::vector<double> values = test::on_host(model.parameters()[i].value);
    const TensorView& to = out.parameters()[i].value;
    const std::vector<float> narrow(values.begin(), values.end());
    const std::span<const std::int64_t> shape(to.shape.data(), static_cast<std::size_t>(to.rank));
    if (dtype == DType::f64)
      copy(to, ConstTensorView(values.data(), DType::f64, shape));
    else
      copy(to, ConstTensorView(narrow.data(), DType::f32, shape));
  }
  out.weights_changed();
  return out;
}

/// Larger weights than at the start of a training, so that no gradient is the small difference of large ones, and such as every
/// type of 16 bits holds exactly (8 bits), so that what differs is what the step rounds.
void enliven(Model& model) {
  for (const Parameter& p : model.parameters()) {
    auto* const values = static_cast<float*>(p.value.data);
    for (std::int64_t i = 0; i < p.value.elements(); ++i) values[i] = std::round(4 * values[i] * 0x1p8F) * 0x1p-8F;
  }
  model.weights_changed();
}

/// Strings of random length and their reversal.
std::vector<Example> reversed(std::mt19937_64& random, std::size_t count, std::uint64_t longest, std::int64_t vocabulary) {
  std::vector<Example> out(count);
  for (Example& example : out) {
    example.source.resize(1 + random() % longest);
    for (std::int32_t& piece : example.source)
      piece = static_cast<std::int32_t>(4 + random() % static_cast<std::uint64_t>(vocabulary - 4));
    example.target.assign(example.source.rbegin(), example.source.rend());
  }
  return out;
}

double root_of_mean_square(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

/// Errors of a network have no useful worst case; the house rule is twice the error of a plain implementation that rounds at the
/// same places: the CPU's, of the same type, both beside the model in f64. Both are taken as the root of the mean square over a
/// tensor, in which single unlucky roundings vanish. Where the CPU happens to be nearly exact, one rounding is allowed for each of
/// the at most eight layers that a gradient passes on its way down, and in f32, whose sums are no wider than what is stored, also
/// those of a sum of 4 H = 512 products, which add up like a random walk of halves of a unit.
double roundings(DType dtype) { return dtype == DType::f32 ? 8 * (1 + std::sqrt(512.0) / 2) : 8; }

TEST_P(CudaGnmt, AStepHasTheGradientsOfTheCpu) {
  const DType dtype = GetParam();
  for (const std::int64_t layers : {1, 2, 3}) {
    SCOPED_TRACE("layers " + std::to_string(layers));
    ModelDescription description = test::small(layers, dtype);
    description.dropout = 0;  // the masks are those of the padded sizes, which the CPU does not have
    Model plain = test::model_on(Device::cpu(), description);
    enliven(plain);
    Model exact = like(plain, DType::f64, Device::cpu()), there = like(plain, dtype, card);
    const Batch batch = test::batch_like(0, 4);
    const Step truth = step_of(exact, batch), expected = step_of(plain, batch), actual = step_of(there, batch);
    EXPECT_EQ(actual.loss.tokens, batch.target_tokens);
    const double few = roundings(dtype) * everglow::test::unit_roundoff(dtype);
    EXPECT_NEAR(actual.loss.loss, truth.loss.loss, 2 * std::fabs(expected.loss.loss - truth.loss.loss) + few * truth.loss.loss);
    double worst = 0;
    for (std::size_t i = 0; i < truth.gradients.size(); ++i) {
      const std::vector<double> none(truth.gradients[i].size(), 0.0);
      const double of_cpu = root_of_mean_square(expected.gradients[i], truth.gradients[i]);
      const double of_card = root_of_mean_square(actual.gradients[i], truth.gradients[i]);
      const double bound = 2 * of_cpu + few * root_of_mean_square(truth.gradients[i], none);
      EXPECT_LE(of_card, bound) << plain.parameters()[i].name;
      worst = std::max(worst, of_card / bound);
    }
    RecordProperty("part_of_the_bound", std::to_string(worst));
    std::printf("%s, %d layers: %.2f of the bound\n", std::string(name(dtype)).c_str(), static_cast<int>(layers), worst);
    EXPECT_NEAR(there.evaluate(batch).loss, exact.evaluate(batch).loss,
                2 * std::fabs(plain.evaluate(batch).loss - exact.evaluate(batch).loss) + few * truth.loss.loss);
  }
}

/// Where a card has nothing to pad, dropout takes the CPU's elements. A log-probability moves by less than 40 layer applications of
/// 64 roundings each (tests/gnmt/model_test.cpp); other masks move the loss by far more.
TEST_F(CudaGnmtModel, DropsWhatTheCpuDrops_sanitize) {
  ModelDescription description = test::small(2, DType::f32);
  description.dropout = 0.4F;
  std::vector<std::pair<int, int>> lengths(32, {5, 3});
  lengths[7] = {9, 7};
  const Batch batch = test::batch_of(test::random_examples(lengths, description.vocabulary, 2));
  Model plain = test::model_on(Device::cpu(), description), there = like(plain, DType::f32, card);
  const double bound = static_cast<double>(batch.target_tokens) * 40 * 64 * everglow::test::unit_roundoff(DType::f32);
  const double expected = plain.forward_backward(batch, 5, 2).loss;
  EXPECT_NEAR(there.forward_backward(batch, 5, 2).loss, expected, bound);
  EXPECT_GT(std::fabs(there.forward_backward(batch, 5, 3).loss - expected), bound);
}

TEST_P(CudaGnmt, GraphsAndStepsAheadHaveTheBitsOfPlainSteps) { test::check_steps_ahead(card, GetParam()); }
TEST_P(CudaGnmt, GoesOnWithTheSameBits) { test::check_resume(card, GetParam()); }

/// Reversed strings: the model must learn to attend. Also that what was learned in any type is decoded in f32 on the card.
TEST_P(CudaGnmt, LearnsToReverse) {
  const std::int64_t vocabulary = 24;
  ModelDescription description = test::small(2, GetParam());
  description.vocabulary = vocabulary, description.dropout = 0;
  Model model = test::model_on(card, description);
  std::mt19937_64 random(7);
  double first = 0, last = 0;
  std::vector<BatchSizes> sizes{{256, 9, 9}};
  model.reserve(sizes);
  for (std::uint64_t step = 0; step < 600; ++step) {
    const std::vector<double> rates{3e-3 * std::min(1.0, (static_cast<double>(step) + 1) / 50)};
    model.train_step(test::batch_of(reversed(random, 256, 8, vocabulary)), {.seed = 1, .step = step, .clip = 5, .rates = rates});
    for (const StepResult& result : model.take_results(step == 599)) {
      EXPECT_FALSE(result.skipped && GetParam() != DType::f16);
      last = result.loss.loss / static_cast<double>(result.loss.tokens);
      if (first == 0) first = last;
    }
  }
  EXPECT_NEAR(first, std::log(static_cast<double>(vocabulary)), 0.5);
  EXPECT_LT(last, first / 2);
  const std::vector<Example> fresh = reversed(random, 100, 8, vocabulary);
  std::vector<std::vector<std::int32_t>> sources, targets;
  for (const Example& example : fresh) sources.push_back(example.source), targets.push_back(example.target);
  const auto found = search(model, sources, {.beam = 4});
  const auto right = std::inner_product(found.begin(), found.end(), targets.begin(), 0, std::plus<>(), std::equal_to<>());
  std::printf("%s: loss %.3f to %.3f, %d of 100 reversed\n", std::string(name(GetParam())).c_str(), first, last, right);
  EXPECT_GE(right, 50);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGnmt, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_F(CudaGnmtModel, OverflowSkipsAStepAndItsPlaceInTheSchedule) { test::check_overflow(card); }

TEST_F(CudaGnmtModel, RefusesTypesThatACardDoesNotHave) {
  try {
    Model(test::small(1, DType::f64), card, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_STREQ(e.what(), "[gnmt.model] dtype: expected f32, f16 or bf16 on cuda:0, got f64");
  }
}

}  // namespace
}  // namespace everglow::gnmt
