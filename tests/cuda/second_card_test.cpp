// A card that is not the first: every row on it, while the calling thread's own card is another, and copies between two.
#include "cases/proof/proof.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace everglow {
namespace {

class SecondCard : public test::OnCard {
 protected:
  void SetUp() override {
    OnCard::SetUp();
    if (IsSkipped()) return;
    int count = 0;
    ASSERT_EQ(cudaSuccess, cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "not tested: a second card, this machine has one";
    ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  }
  static int current() {
    int device = -1;
    cudaGetDevice(&device);
    return device;
  }
  static constexpr Device second = Device::cuda(1);
};

TEST_F(SecondCard, AgreesWithTheReferenceAndLeavesTheCallersCard) {
  for (const char* layer : {"linear", "softmax", "attention", "recurrent", "pointwise", "embedding", "loss", "adam"})
    for (const cases::Case& c : cases::tested(layer)) {
      if (!c.tagged("sanitize")) continue;
      SCOPED_TRACE(c.line);
      const auto proof = proof::make_proof(c);
      proof->device = DeviceDescription(second);
      for (const std::string& row : proof::accepting_rows(*proof, {}))
        for (const auto& finding : proof->run({.force = row}))
          EXPECT_EQ("", finding.fault) << row << ' ' << finding.direction << ' ' << finding.tensor;
      ASSERT_EQ(current(), 0);
    }
}

TEST_F(SecondCard, CopiesBetweenCards) {
  test::HostTensor from(DType::f32, {5, 7}), to(DType::f32, {5, 7});
  from.uniform(1, -1, 1);
  const Buffer first(5 * 7 * 4, card), other(5 * 7 * 4, second);
  const TensorView a(first.data(), DType::f32, {5, 7}, card), b(other.data(), DType::f32, {5, 7}, second);
  copy(a, from, stream);
  copy(b, a, stream);
  stream.synchronize();
  copy(to, b, Stream{second, nullptr});
  Stream{second, nullptr}.synchronize();
  EXPECT_EQ(to.values(), from.values());
  EXPECT_EQ(current(), 0);
}

}  // namespace
}  // namespace everglow
