// Tests that need a card: where there is none they are skipped and say why.
#pragma once

#include <everglow/runtime.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace everglow::test {

/// The status of a backend or of a library that it opens.
inline BackendStatus backend(std::string_view name) {
  const std::vector<BackendStatus> all = backends();
  const auto found = std::find_if(all.begin(), all.end(), [&](const BackendStatus& status) { return status.name == name; });
  return found != all.end() ? *found : BackendStatus{std::string(name), false, "not part of this build"};
}

class OnCard : public testing::Test {
 protected:
  void SetUp() override {
    if (const BackendStatus cuda = backend("cuda"); !cuda.usable) GTEST_SKIP() << cuda.reason;
  }
  static constexpr Device card = Device::cuda(0);
  const Stream stream{card, nullptr};
};

}  // namespace everglow::test
