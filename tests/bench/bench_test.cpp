// The benchmarks' library: what a record of a card says, the tables and the cases of the story, tensors with room between rows.
#include "bench/rows.hpp"
#include "bench/story.hpp"

#include <gtest/gtest.h>

namespace everglow::bench {
namespace {

TEST(BenchRecord, NamesTheDriverOfACardAndNullOnACpu) {
  Record r{.op = "softmax", .line = "softmax rows=1", .kernel = "k", .samples_us = {1, 3}, .median_us = 2};
  EXPECT_NE(json_line(r).find("\"driver\":null,\"nvcc\":null"), std::string::npos) << json_line(r);
  r.driver = "CUDA 13.0", r.nvcc = "13.0";
  EXPECT_NE(json_line(r).find("\"driver\":\"CUDA 13.0\",\"nvcc\":\"13.0\""), std::string::npos) << json_line(r);
  r.kernel = "cuda.recurrent_stepwise (graph)", r.direction = "activation_gradient";
  EXPECT_NE(table_line(r).find("activation_gradient cuda.recurrent_stepwise (graph) "), std::string::npos) << table_line(r);
  EXPECT_NE(table_head(r).find("x peer"), std::string::npos) << table_head(r);
}

/// Rates are flops over time, "both" is of the sums, and what a row declines stays empty.
TEST(BenchStory, TableHasRatesAndRatios) {
  const StoryLine both{.length = 512,
                       .forward_flops = 4e12,
                       .backward_flops = 10e12,
                       .cells = {{"sm80.attention_flash2", 10'000, 50'000},
                                 {"sm80.attention_flash1", 20'000, 130'000},
                                 {"cuda.attention_standard", 100'000, 200'000}}};
  StoryLine one = both;
  one.length = 1024;
  one.cells.erase(one.cells.begin() + 1);
  EXPECT_EQ(story_table({both, one}),
            "  length            flash2            flash1          standard   flash2 : flash1   flash2 : standard\n"
            "     512   400 / 200 / 233     200 / 77 / 93      40 / 50 / 47              2.50                5.00\n"
            "    1024   400 / 200 / 233                        40 / 50 / 47                                  5.00\n");
}

TEST(BenchStory, CoversLengthsHeadSizesAndMasks) {
  const std::vector<cases::Case> all = story_lines("", "bf16");
  EXPECT_EQ(all.size(), 36U);
  for (const cases::Case& c : all) {
    EXPECT_EQ(c.integer("batch", 0) * c.integer("queries", 0), 16384) << c.line;
    EXPECT_EQ(c.integer("heads", 0) * c.integer("head_dim", 0), 2048) << c.line;
    EXPECT_EQ(c.text("dtype", ""), "bf16") << c.line;
  }
  EXPECT_EQ(story_lines("head_dim=128 causal=1", "f16").size(), 6U);
  EXPECT_THROW(story_lines("head_dim=32", "f16"), Error);
}

TEST(BenchCases, AreThoseOfTheDevice) {
  Request request;
  const auto holds = [&](const std::string& text) {
    const std::vector<cases::Case> all = chosen_cases(request);
    return std::any_of(all.begin(), all.end(), [&](const cases::Case& c) { return c.line.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(holds("linear batch=512 inputs=256 outputs=1024")) << "the tag bench";
  EXPECT_FALSE(holds("outputs=33708"));
  request.settings.device.device = Device::cuda(0);
  EXPECT_TRUE(holds("outputs=33708 dtype=f16 rows=preferred")) << "the tag card";
  request.tag = "users";
  EXPECT_TRUE(holds("batch=65536")) << "a shape for a card alone";
  EXPECT_FALSE(holds("gnmt")) << "a shape for a CPU alone";
}

TEST(BenchDevice, SaysWhatIsMissing) {
  for (const BackendStatus& backend : backends())
    if (backend.name == "cuda" && !backend.usable) {
      Settings settings;
      try {
        open_device(settings, Device::cuda(0));
        ADD_FAILURE() << "a card that is not there";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_EQ(std::string(error.what()), "[bench] --device cuda:0: " + backend.reason);
      }
    }
}

/// Rows on a stride: every element that a view can reach is filled, and sets do not overlap.
TEST(BenchTensors, RowsMayStandApart) {
  TensorSets sets;
  const int wide = sets.add(DType::f32, {3, 5}, 1, 2, 8), dense = sets.add(DType::f32, {3, 5}, 1, 2);
  sets.allocate({.sets = 2});
  EXPECT_EQ(sets.sets(), 2);
  for (std::int64_t set = 0; set < 2; ++set) {
    EXPECT_EQ(sets.at(wide, set).stride(0), 8);
    EXPECT_TRUE(sets.at(dense, set).dense());
    for (std::int64_t row = 0; row < 3; ++row) {
      const auto* data = static_cast<const float*>(sets.at(wide, set).data) + 8 * row;
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(data[i] >= 1 && data[i] <= 2) << data[i];
    }
  }
  EXPECT_GE(static_cast<const std::byte*>(sets.at(wide, 1).data) - static_cast<const std::byte*>(sets.at(wide, 0).data), 3 * 8 * 4);
  EXPECT_EQ(sets.bytes({wide}), 3 * 5 * 4.0) << "what lies between rows is no traffic";
}

/// A card whose runs take as long as the test says.
class FakeCard : public Card {
 public:
  explicit FakeCard(double us) : us_(us) {}
  Stream stream() const override { return {}; }
  double microseconds(const std::function<void()>& run, int times) override {
    for (int i = 0; i < times; ++i) run();
    timed.push_back(times);
    return us_;
  }
  std::function<void()> captured(const std::function<void()>& run) override {
    run();
    return [this] { ++launches; };
  }
  std::vector<int> timed{};
  int launches = 0;

 private:
  double us_;
};

/// A sample is as many runs as take a millisecond, sets in turn; a slow row takes three samples and no more.
TEST(BenchMeasure, CountsRunsOfACard) {
  for (const double us : {100.0, 60'000.0}) {
    FakeCard card(us);
    std::vector<std::int64_t> sets;
    Problem problem{"f32", {{"forward"}}, {{"row", 2, {{{}, [&](std::int64_t set) { sets.push_back(set); }}}}}};
    const std::vector<Samples> samples = measure(problem, 0, {.seconds = 0}, &card);
    const bool slow = us > 1000;
    EXPECT_EQ(samples[0].us, std::vector<double>(slow ? 3 : 15, us));
    EXPECT_EQ(card.timed.back(), slow ? 1 : 10);
    EXPECT_EQ(card.timed.front(), 1) << "warm-up";
    for (std::size_t i = 0; i < sets.size(); ++i) EXPECT_EQ(sets[i], static_cast<std::int64_t>(i % 2));
  }
}

/// What a backward run reads is made before it is captured, for each set, and a run launches the graph.
TEST(BenchRows, AreCapturedOncePrepared) {
  const auto card = std::make_shared<FakeCard>(1);
  std::vector<std::string> calls;
  Row row{"cuda.linear", 2, {}};
  row.passes.push_back({[&](std::int64_t set) { calls.push_back("prepare " + std::to_string(set)); },
                        [&](std::int64_t set) { calls.push_back("run " + std::to_string(set)); }});
  const Row graph = captured(row, card);
  EXPECT_EQ(graph.kernel, "cuda.linear (graph)");
  EXPECT_TRUE(is_plain(graph.kernel)) << "left out where the row itself is";
  for (const std::int64_t set : {0, 1}) graph.passes[0].prepare(set);
  EXPECT_EQ(calls, (std::vector<std::string>{"prepare 0", "run 0", "prepare 1", "run 1"}));
  graph.passes[0].run(1);
  EXPECT_EQ(card->launches, 1);
  EXPECT_EQ(calls.size(), 4U) << "a run is a launch";
  Settings settings;
  EXPECT_EQ(with_captured({row}, settings).size(), 1U);
  settings.card = card, settings.graphs = true;
  EXPECT_EQ(with_captured({row}, settings).size(), 2U);
}

}  // namespace
}  // namespace everglow::bench
