// The cases of every layer on every CUDA row that accepts them, against the reference on the CPU in f64.
#include "cases/proof/proof.hpp"
#include "cuda/card.hpp"

namespace everglow {
namespace {

/// The cases of a layer that are tagged `sanitize`, or the others. One test for all of them: each process starts CUDA anew.
struct Part {
  const char* layer;
  bool sanitize;
};

class EveryCudaRow : public testing::TestWithParam<Part> {
 protected:
  void SetUp() override {
    if (const BackendStatus cuda = test::backend("cuda"); !cuda.usable) GTEST_SKIP() << cuda.reason;
    // A layer without CUDA rows has one entry, which declines everything.
    if (kernels(GetParam().layer, DeviceKind::cuda) == std::vector<std::string>{"cuda"})
      GTEST_SKIP() << "no CUDA row serves " << GetParam().layer;
  }
};

TEST_P(EveryCudaRow, AgreesWithTheReference) {
  std::size_t ran = 0;
  for (const cases::Case& c : cases::tested(GetParam().layer)) {
    if (c.tagged("sanitize") != GetParam().sanitize) continue;
    SCOPED_TRACE(c.line);
    const auto proof = proof::make_proof(c);
    proof->device = DeviceDescription(Device::cuda(0));
    for (const bool deterministic : {false, true})
      for (const std::string& row : proof::accepting_rows(*proof, {.deterministic = deterministic})) {
        SCOPED_TRACE(row + (deterministic ? " deterministic" : ""));
        const auto findings = proof->run({.force = row, .deterministic = deterministic});
        for (const auto& finding : findings) EXPECT_EQ("", finding.fault) << finding.direction << ' ' << finding.tensor;
        ++ran;
        if (!deterministic) continue;
        const auto again = proof->run({.force = row, .deterministic = true});
        for (std::size_t i = 0; i < again.size(); ++i)
          EXPECT_EQ(findings[i].digest, again[i].digest) << "other bits in " << again[i].direction << ' ' << again[i].tensor;
      }
  }
  EXPECT_GT(ran, 0U) << "no row took any case";
}

constexpr Part parts[] = {{"attention", true}, {"attention", false}, {"linear", true},    {"linear", false},
                          {"softmax", true},   {"softmax", false},   {"embedding", true}, {"embedding", false},
                          {"pointwise", true}, {"pointwise", false}, {"recurrent", true}, {"recurrent", false}};
INSTANTIATE_TEST_SUITE_P(Cuda, EveryCudaRow, testing::ValuesIn(parts),
                         [](const auto& info) { return std::string(info.param.layer) + (info.param.sanitize ? "_sanitize" : ""); });

}  // namespace
}  // namespace everglow
