// Every case of every layer, on every row that accepts it, forward and backward, against the reference in f64: the proofs of
// cases/proof, which also state the bounds.
#include "cases/proof/proof.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

class EveryRow : public testing::TestWithParam<cases::Case> {};

TEST_P(EveryRow, AgreesWithTheReference) {
  const auto proof = proof::make_proof(GetParam());
  for (const bool deterministic : {false, true})
    for (const std::string& row : proof::accepting_rows(*proof, {.deterministic = deterministic})) {
      if (deterministic && row.starts_with("reference")) continue;  // computes in one way
      SCOPED_TRACE(row + (deterministic ? " deterministic" : ""));
      for (const auto& finding : proof->run({.threads = 2, .force = row, .deterministic = deterministic}))
        EXPECT_EQ("", finding.fault) << finding.direction << ' ' << finding.tensor;
    }
  proof->device.isa = "none";  // plans are made on the proof's device, or a lower instruction set would go unproved
  EXPECT_THROW(proof->explain({}), Error);
  EXPECT_THROW(proof->run({.force = "reference." + GetParam().layer}), Error);
}

/// Lower instruction sets than the machine's best, which plans take on other machines.
TEST_P(EveryRow, AgreesOnLowerInstructionSets) {
  const std::string best = DeviceDescription(Device::cpu()).isa;
  const auto proof = proof::make_proof(GetParam());
  for (const char* isa : {"portable", "avx2"}) {
    if (best == "portable" || best == isa) continue;  // no lower one
    proof->device.isa = isa;
    for (const std::string& row : proof::accepting_rows(*proof, {.deterministic = true})) {
      if (row.starts_with("reference")) continue;  // has no kernels
      SCOPED_TRACE(row + ' ' + isa);
      for (const auto& finding : proof->run({.threads = 2, .force = row, .deterministic = true}))
        EXPECT_EQ("", finding.fault) << finding.direction << ' ' << finding.tensor;
    }
  }
}

/// A deterministic plan gives the same bits for any number of threads, more of them than rows included. The threads of a recurrent
/// layer meet in every step, which many of them on few cores would make slow.
TEST_P(EveryRow, ThreadsDoNotChangeBits) {
  const auto proof = proof::make_proof(GetParam());
  for (const std::string& row : proof::accepting_rows(*proof, {.deterministic = true})) {
    if (row.starts_with("reference")) continue;  // one thread
    SCOPED_TRACE(row);
    const auto digests = [&](int threads) {
      std::vector<std::uint64_t> out;
      for (const auto& finding : proof->run({.threads = threads, .force = row, .deterministic = true}))
        out.push_back(finding.digest);
      return out;
    };
    const auto one = digests(1);
    for (const int threads : {2, 3, GetParam().layer == "recurrent" ? 4 : 50})
      EXPECT_EQ(digests(threads), one) << threads << " threads";
  }
}

const auto name_of = [](const auto& info) {
  return std::to_string(info.index) + (info.param.tagged("sanitize") ? "_sanitize" : "");
};
INSTANTIATE_TEST_SUITE_P(Attention, EveryRow, testing::ValuesIn(cases::tested("attention")), name_of);
INSTANTIATE_TEST_SUITE_P(Linear, EveryRow, testing::ValuesIn(cases::tested("linear")), name_of);
INSTANTIATE_TEST_SUITE_P(Recurrent, EveryRow, testing::ValuesIn(cases::tested("recurrent")), name_of);
INSTANTIATE_TEST_SUITE_P(Softmax, EveryRow, testing::ValuesIn(cases::tested("softmax")), name_of);
INSTANTIATE_TEST_SUITE_P(Embedding, EveryRow, testing::ValuesIn(cases::tested("embedding")), name_of);
INSTANTIATE_TEST_SUITE_P(Loss, EveryRow, testing::ValuesIn(cases::tested("loss")), name_of);
INSTANTIATE_TEST_SUITE_P(Pointwise, EveryRow, testing::ValuesIn(cases::tested("pointwise")), name_of);
INSTANTIATE_TEST_SUITE_P(Adam, EveryRow, testing::ValuesIn(cases::tested("adam")), name_of);

}  // namespace
}  // namespace everglow
