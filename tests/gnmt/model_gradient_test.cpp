// The gradient of the whole model, by finite differences in f64 on the reference rows: every parameter, several entries of each.
#include "gnmt/model_batches.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace everglow::gnmt {
namespace {

struct Wiring {
  std::int64_t layers;
  float dropout;
};

class ModelGradient : public testing::TestWithParam<Wiring> {};

/// The central difference errs by K h^2 / 6, K a bound of the third derivative, plus the roundoff of the loss over h: 2^-53 times
/// the operations along the longest chain (below 1e4) times |loss| (below 5). With h = 1e-5 and K below 1000 (weights within +-0.8,
/// about ten layers of sigmoids and products whose derivatives are of order 1) these are 1.7e-8 and 6e-7 at the very most;
/// roundoffs of random signs leave the square root of their number, 6e-9. A wrong term shows as an error of the size of a gradient,
/// 1e-5 and more.
TEST_P(ModelGradient, AgreesWithFiniteDifferences_sanitize) {
  const ModelDescription description = test::tiny(GetParam().layers, DType::f64, GetParam().dropout);
  Model model(description, Device::cpu(), {});
  model.initialise(3);
  for (const Parameter& parameter : model.parameters())  // larger weights, so that no gradient is lost in a flat place
    for (std::int64_t i = 0; i < parameter.value.elements(); ++i) static_cast<double*>(parameter.value.data)[i] *= 8;
  const Batch batch = test::ragged_batch(description.vocabulary);
  model.forward_backward(batch, 7, 9);
  std::vector<std::vector<double>> gradients;
  for (const Parameter& parameter : model.parameters()) gradients.push_back(test::values_of(parameter.gradient));

  const auto mean_loss = [&] {
    const LossSum sum = model.forward_backward(batch, 7, 9);
    return sum.loss / static_cast<double>(sum.tokens);
  };
  std::mt19937_64 random(5);
  constexpr double h = 1e-5;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const Parameter& parameter = model.parameters()[p];
    double largest = 0;
    for (const double g : gradients[p]) largest = std::max(largest, std::fabs(g));
    EXPECT_GT(largest, 1e-5) << parameter.name << " has no gradient that a difference could prove";
    for (int draw = 0; draw < 8; ++draw) {
      const std::size_t i =
          draw == 0 ? static_cast<std::size_t>(std::max_element(gradients[p].begin(), gradients[p].end()) - gradients[p].begin())
                    : random() % gradients[p].size();
      double& value = static_cast<double*>(parameter.value.data)[i];
      const double before = value;
      value = before + h;
      const double above = mean_loss();
      value = before - h;
      const double below = mean_loss();
      value = before;
      EXPECT_NEAR(gradients[p][i], (above - below) / (2 * h), 1e-7) << parameter.name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ModelGradient,
                         testing::Values(Wiring{1, 0}, Wiring{1, 0.3F}, Wiring{2, 0}, Wiring{2, 0.3F}, Wiring{3, 0},
                                         Wiring{3, 0.3F}, Wiring{4, 0.3F}),
                         [](const auto& info) {
                           return std::to_string(info.param.layers) + (info.param.dropout > 0 ? "_layers_dropout" : "_layers");
                         });

}  // namespace
}  // namespace everglow::gnmt
