// The reader of case lines, and which cases are for tests and which for benchmarks.
#include "cases/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace everglow {
namespace {

TEST(Cases, LineIsRead) {
  const cases::Case c = cases::parse("linear batch=3 scale=-0.5 layout=inputs_outputs bias=0 # bench sanitize");
  EXPECT_EQ(c.layer, "linear");
  EXPECT_EQ(c.integer("batch", 1), 3);
  EXPECT_EQ(c.number("scale", 0), -0.5);
  EXPECT_EQ(c.text("layout", ""), "inputs_outputs");
  EXPECT_FALSE(c.flag("bias", true));
  EXPECT_EQ(c.integer("outputs", 7), 7);
  EXPECT_TRUE(c.tagged("bench") && c.tagged("sanitize") && !c.tagged("cuda"));
}

TEST(Cases, WrongLinesThrow) {
  for (const char* line : {"", "# only a comment", "linear batch", "linear =3", "linear batch=1 batch=2"})
    EXPECT_THROW(cases::parse(line), std::invalid_argument) << line;
  EXPECT_THROW(cases::parse("linear batch=3x").integer("batch", 1), std::invalid_argument);
}

TEST(Cases, TestsLeaveOutWhatOnlyBenchmarksRun) {
  std::size_t tested = 0;
  for (const char* layer : {"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"}) {
    for (const cases::Case& c : cases::tested(layer)) {
      EXPECT_EQ(c.layer, layer);
      EXPECT_FALSE(c.tags.size() == 1 && (c.tagged("bench") || c.tagged("users"))) << c.line;
      ++tested;
    }
    const auto benched = cases::tagged("bench");
    EXPECT_TRUE(std::any_of(benched.begin(), benched.end(), [&](const cases::Case& c) { return c.layer == layer; })) << layer;
  }
  EXPECT_GT(tested, 100U);
}

TEST(Cases, CpuTimesWhatItCan) {
  const auto all = cases::tagged("users"), here = cases::timed("users");
  EXPECT_LT(here.size(), all.size());  // some shapes are for a GPU alone
  for (const cases::Case& c : here) EXPECT_TRUE(c.tagged("cpu") || !c.tagged("cuda")) << c.line;
  for (const char* layer : {"linear", "recurrent", "attention", "softmax"})
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      const auto headline = cases::timed("headline");
      EXPECT_TRUE(std::any_of(headline.begin(), headline.end(),
                              [&](const cases::Case& c) { return c.layer == layer && c.text("dtype", "f32") == dtype; }))
          << layer << ' ' << dtype;
    }
}

}  // namespace
}  // namespace everglow
