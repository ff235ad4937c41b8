// The plan of the translation model: its parameters are the model's, its sums are those of its items, and its advice holds.
#include <everglow/gnmt/plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace everglow::gnmt {
namespace {

TEST(ModelPlan, CountsTheParametersOfTheModel) {
  for (const std::int64_t layers : {1, 2, 3}) {
    const ModelDescription d{.hidden = 24, .layers = layers, .vocabulary = 37};
    const Model model(d, Device::cpu(), {});
    std::int64_t elements = 0;
    for (const Parameter& parameter : model.parameters()) elements += parameter.value.elements();
    EXPECT_EQ(explain(d, {4, 6}, Device::cpu()).parameters, elements) << layers;
  }
}

ModelExplanation on(const char* device, const ModelDescription& d, const ModelSizes& sizes) {
  return explain(d, sizes, DeviceDescription::named(device));
}

TEST(ModelPlan, SumsItsItems) {
  const auto m = on("h200", {.hidden = 1024, .layers = 4, .vocabulary = 32320, .dtype = DType::bf16}, {128, 50});
  double time = 0, floor = 0;
  for (const ModelItem& item : m.items) time += item.explanation.time_us, floor += item.explanation.floor_us;
  EXPECT_NEAR(m.time_us, time, 1e-9 * time);
  EXPECT_NEAR(m.floor_us, floor, 1e-9 * floor);
  EXPECT_NEAR(m.tokens_per_second, 2 * 128 * 50 / time * 1e6, 1e-6 * m.tokens_per_second);
  EXPECT_EQ(m.memory.weights, 6 * m.parameters);  // f32 master weights beside the 16-bit ones
  EXPECT_EQ(m.memory.optimizer, 8 * m.parameters);
  EXPECT_GE(m.memory.peak, m.memory.weights + m.memory.gradients + m.memory.optimizer + m.memory.activations);
  ASSERT_EQ(m.worst.size(), 3U);
  const auto lost = [&](std::size_t i) { return m.items[i].explanation.time_us - m.items[i].explanation.floor_us; };
  for (std::size_t i = 0; i < m.items.size(); ++i) EXPECT_LE(std::min(lost(i), lost(m.worst[0])), lost(m.worst[0]));
  EXPECT_GE(lost(m.worst[0]), lost(m.worst[1]));
  EXPECT_GE(lost(m.worst[1]), lost(m.worst[2]));
}

/// PyTorch 2.11 on one H200: 4 + 4 layers of 1024, 32320 words, 8-head dot-product attention, 50 tokens a side, source + target
/// tokens a second. Its own overhead is in them; a prediction of the device alone may be faster, by less than two.
TEST(ModelPlan, TheMeasuredModelOfAnH200) {
  struct Row {
    std::int64_t batch;
    double f16, bf16;
  };
  for (const Row& row : {Row{64, 278e3, 248e3}, {128, 427e3, 427e3}, {256, 625e3, 600e3}, {512, 791e3, 788e3}})
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const auto m = on("h200", {.hidden = 1024, .layers = 4, .vocabulary = 32320, .dtype = dtype}, {row.batch, 50});
      const double ratio = m.tokens_per_second / (dtype == DType::f16 ? row.f16 : row.bf16);
      EXPECT_GT(ratio, 0.5) << row.batch << ' ' << name(dtype);
      EXPECT_LT(ratio, 2.0) << row.batch << ' ' << name(dtype);
    }
}

TEST(ModelPlan, AnOddVocabulary) {
  const ModelDescription d{.hidden = 1024, .layers = 4, .vocabulary = 33708, .dtype = DType::f16};
  const auto m = on("h200", d, {128, 50});
  const auto found = std::find_if(m.advice.begin(), m.advice.end(), [](const auto& a) { return a.dimension == "vocabulary"; });
  ASSERT_NE(found, m.advice.end());
  EXPECT_EQ(found->to, 33712);
  ModelDescription padded = d;
  padded.vocabulary = 33712;
  EXPECT_NEAR(m.time_us / on("h200", padded, {128, 50}).time_us, found->gain, 1e-9);
}

TEST(ModelPlan, RefusesWhatIsNoModel) {
  EXPECT_THROW(on("h200", {.hidden = 0, .vocabulary = 5}, {1, 1}), Error);
  EXPECT_THROW(on("h200", {.hidden = 8, .layers = 0, .vocabulary = 5}, {1, 1}), Error);
  EXPECT_THROW(on("h200", {.hidden = 8, .vocabulary = 5}, {-1, 1}), Error);
  EXPECT_EQ(on("h200", {.hidden = 8, .vocabulary = 5}, {0, 3}).tokens_per_second, 0);
}

}  // namespace
}  // namespace everglow::gnmt
