// The host half of the CUDA rows: plans for a card that is only named, and what they say.
#include "cuda/card.hpp"
#include "plan/devices.hpp"

#include <everglow/everglow.hpp>

namespace everglow {
namespace {

const DeviceDescription& h200() {
  static const DeviceDescription device = DeviceDescription::named("h200");
  return device;
}
constexpr std::size_t library_scratch = std::size_t{32} << 20;

TEST(CudaPlans, LinearTakesTheLibrary) {
  const LinearPlan plan({.inputs = 1024, .outputs = 4096, .dtype = DType::f16, .training = true}, {4096}, h200());
  EXPECT_EQ(plan.explain().kernel, "cublaslt.linear");
  EXPECT_GE(plan.workspace_bytes(), library_scratch);
  EXPECT_LT(plan.workspace_bytes(), library_scratch + (2 << 20)) << "aligned sizes stage nothing";
  EXPECT_EQ(plan.packed_bytes(), 0U);
  EXPECT_EQ(plan.preferred_stride(33708), 33728);
  try {
    plan.forward({}, {}, {Device::cuda(0), nullptr});
    ADD_FAILURE() << "ran on a card that is only named";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
  }
}

TEST(CudaPlans, OddSizesHaveRoomForStagedRows) {
  const auto workspace = [](std::int64_t outputs) {
    return LinearPlan({.inputs = 1024, .outputs = outputs, .dtype = DType::f16}, {5120}, h200()).workspace_bytes();
  };
  EXPECT_GE(workspace(33708), library_scratch + std::size_t{5120} * 33728 * 2);
  EXPECT_LT(workspace(33712), library_scratch + (1 << 20));
  // Of products this small the copies would take longer than they gain.
  const LinearPlan small({.inputs = 33, .outputs = 49, .dtype = DType::f16}, {17}, h200());
  EXPECT_LT(small.workspace_bytes(), library_scratch + 4096);
}

TEST(CudaPlans, ADeterministicLinearLayerIsThePlainRow) {
  const LinearPlan plan({.inputs = 64, .outputs = 64}, {8}, h200(), {.deterministic = true});
  EXPECT_EQ(plan.explain().kernel, "cuda.linear");
  EXPECT_NE(plan.explain().rows[0].reason.find("order"), std::string::npos) << plan.explain().rows[0].reason;
}

/// Without tensor cores, in small tiles: nobody should take its time for the library's.
TEST(CudaPlans, ThePlainRowIsPredictedAsSlowAsItIs) {
  const auto predicted = [](const char* row, DType dtype) {
    const LinearDescription d{.inputs = 1024, .outputs = 4096, .dtype = dtype};
    return LinearPlan(d, {4096}, h200(), {.force = row}).explain().time_us;
  };
  EXPECT_GT(predicted("cuda.linear", DType::f16), 50 * predicted("cublaslt.linear", DType::f16));
  EXPECT_GT(predicted("cuda.linear", DType::f32), 3 * predicted("cublaslt.linear", DType::f32));
  const LinearPlan odd({.inputs = 1023, .outputs = 4097, .dtype = DType::f16}, {4096}, h200(), {.force = "cuda.linear"});
  EXPECT_EQ(odd.explain().alignment_needed, 0) << "its loads are single elements, wherever rows begin";
}

/// 4 gates of both directions in f32 are kept for each row and step, and the cell state; packed are the matrices in f16 and in f32.
TEST(CudaPlans, RecurrentLayersGoStepByStep) {
  constexpr std::int64_t hidden = 128, inputs = 64, steps = 8, batch = 4;
  RecurrentDescription d{.inputs = inputs, .hidden = hidden, .bidirectional = true, .dtype = DType::f16, .training = true};
  const RecurrentPlan plan(d, {steps, batch}, h200());
  EXPECT_EQ(plan.explain().kernel, "cuda.recurrent_stepwise");
  EXPECT_EQ(plan.reserve_bytes(), 2 * steps * batch * (4 * hidden + hidden) * sizeof(float));
  // Rows of w_ih end on multiples of 256 bytes.
  EXPECT_EQ(plan.packed_bytes(), 2 * 4 * hidden * (hidden * (2 + sizeof(float)) + 128 * 2 + inputs * sizeof(float)));
  EXPECT_GE(plan.workspace_bytes(), library_scratch);
  const RecurrentPlan plain(d, {steps, batch}, h200(), {.deterministic = true});
  EXPECT_LT(plain.workspace_bytes(), library_scratch) << "a deterministic plan asks no library";
  d.inputs = d.hidden = 8;
  EXPECT_LT(RecurrentPlan(d, {steps, batch}, h200()).workspace_bytes(), library_scratch) << "nor do small products";
  try {
    plan.forward({}, {}, {Device::cuda(0), nullptr});
    ADD_FAILURE() << "ran on a card that is only named";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
  }
}

TEST(CudaPlans, RowsSayWhyTheyDecline) {
  const LinearPlan wide({.inputs = 8, .outputs = 8, .dtype = DType::f64}, {4}, h200());
  EXPECT_EQ(wide.explain().kernel, "");
  for (const ExplanationRow& row : wide.explain().rows) EXPECT_NE(row.reason.find("f64"), std::string::npos) << row.reason;
  const SoftmaxPlan old({}, {4, 8}, DeviceDescription::named("t4"));
  EXPECT_EQ(old.explain().rows[0].reason, "needs CUDA compute capability 8.0 or newer, t4 has 7.5");
}

/// 16 blocks of 227 KiB hold a row of some 900,000 f32; an A100 has no clusters, and its blocks 163 KiB.
TEST(CudaPlans, SoftmaxNeedsScratchOnlyWhereARowDoesNotFit) {
  const auto workspace = [](const char* device, std::int64_t columns) {
    return SoftmaxPlan({}, {3, columns}, DeviceDescription::named(device)).workspace_bytes();
  };
  EXPECT_EQ(workspace("h200", 450000), 0U);
  EXPECT_GT(workspace("h200", 1000000), 0U);
  EXPECT_EQ(workspace("a100-80", 20000), 0U);
  EXPECT_GT(workspace("a100-80", 50000), 0U);
}

/// Not in the middle of a run: 2^26 pairs of 64 tiles each are more than a grid holds; a bias keeps all of them in one part.
TEST(CudaPlans, StandardAttentionDeclinesMoreBlocksThanAGrid) {
  const auto reason = [](std::int64_t batch, std::int64_t keys, std::int64_t value_dim, bool bias) {
    const AttentionDescription d{.heads = 64, .head_dim = 8, .value_dim = value_dim, .bias = bias};
    return AttentionPlan(d, {.batch = batch, .queries = 1, .keys = keys}, h200()).explain().rows.back().reason;
  };
  constexpr std::int64_t many = std::int64_t{1} << 20;
  EXPECT_EQ(reason(many, 1, 64, false), "");
  EXPECT_NE(reason(many, 1, 4096, false).find("thread blocks"), std::string::npos) << reason(many, 1, 4096, false);
  EXPECT_EQ(reason(many, 2048, 64, false), "");
  EXPECT_NE(reason(many, 2048, 64, true).find("thread blocks"), std::string::npos) << reason(many, 2048, 64, true);
}

TEST(CudaPlans, EveryLayerHasARowThatAnswers) {
  for (const char* layer : {"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"})
    EXPECT_FALSE(kernels(layer, DeviceKind::cuda).empty()) << layer;
  EXPECT_EQ(kernels("pointwise", DeviceKind::cuda), std::vector<std::string>{"cuda.pointwise"});
}

TEST(CudaPlans, WithoutACardTheErrorSaysSo) {
  const BackendStatus cuda = test::backend("cuda");
  if (cuda.usable) GTEST_SKIP() << "there is a card: " << cuda.reason;
  try {
    LinearPlan({.inputs = 8, .outputs = 8}, {4}, Device::cuda(0));
    ADD_FAILURE() << "planned for a card that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find(cuda.reason), std::string::npos) << error.what();
  }
}

TEST(CudaPlans, CardsAreKnownByTheirNames) {
  const auto known = [](std::string_view card) {
    const plan::NamedDevice* const found = plan::find_card(card);
    return found != nullptr ? found->name : std::string_view("none");
  };
  EXPECT_EQ(known("NVIDIA H200"), "h200");
  EXPECT_EQ(known("NVIDIA H100 80GB HBM3"), "h100-sxm");
  EXPECT_EQ(known("NVIDIA A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(known("NVIDIA L40S"), "l40s");
  EXPECT_EQ(known("NVIDIA L4"), "l4");
  EXPECT_EQ(known("NVIDIA GH200 480GB"), "none");
  // An unknown card of the H100's units and clock has about its rates.
  const DeviceFigures guess = plan::estimate_gpu({.units = 132, .capability = 90, .clock_ghz = 1.83, .bandwidth_gbs = 3352});
  EXPECT_NEAR(guess.f16_tflops, 989.4, 10);
  EXPECT_EQ(guess.largest_cluster, 16);
  EXPECT_EQ(guess.source, "estimated");
}

}  // namespace
}  // namespace everglow
