// Training runs of a tiny model: a run that is interrupted and goes on gives the same bits, and wrong options are named.
#include <everglow/gnmt/numbers.hpp>
#include <everglow/gnmt/trainer.hpp>

#include "gnmt/checkpoint.hpp"
#include "gnmt/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

namespace everglow::gnmt {
namespace {

TrainData small_data() {
  TrainData data;
  for (std::int64_t n = 0; n < 60; ++n) data.train.push_back({english(n), french(n)});
  for (std::int64_t n = 60; n < 68; ++n) data.valid.push_back({english(n), french(n)});
  for (std::int64_t n = 68; n < 72; ++n) data.test.push_back({english(n), french(n)});
  return data;
}

TrainOptions small_options(const std::string& out) {
  TrainOptions o;
  o.out = out;
  o.layers = 1, o.hidden = 8, o.vocabulary = 60;
  o.batch_tokens = 200, o.warmup = 4;
  o.steps = 30, o.valid_every = 10;
  return o;
}

/// Every tensor of a checkpoint, name by name.
std::string tensors_of(const std::string& file) {
  const SafetensorsFile opened(file);
  std::string out;
  for (const std::string& name : opened.names()) {
    const ConstTensorView view = opened.tensor(name);
    out += name;
    out.append(static_cast<const char*>(view.data), static_cast<std::size_t>(view.elements()) * size_of(view.dtype));
  }
  return out;
}

/// What must not depend on interruptions; clocks and machines may.
TrainState comparable(const std::string& file) {
  TrainState state = Checkpoint(file).state();
  state.seconds = 0;
  return state;
}

std::string message_of(const std::function<void()>& action, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}

/// A run that is stopped before a step and goes on, beside one that is not stopped.
void check_interrupted(std::int64_t step, DType precision) {
  const test::TemporaryFolder folder;
  const TrainData data = small_data();
  TrainOptions whole = small_options(folder.file("whole")), parts = small_options(folder.file("parts"));
  whole.precision = parts.precision = precision;
  const TrainResult result = train(whole, data, {});
  EXPECT_EQ(result.steps, 30);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.test_lines, 4);

  std::int64_t asked = 0;
  const TrainResult stopped = train(parts, data, {}, [&] { return asked++ == step; });
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.steps, step);
  const TrainResult resumed = train(parts, data, {});
  EXPECT_EQ(resumed.steps, 30);
  EXPECT_EQ(resumed.tokens, result.tokens);
  EXPECT_EQ(resumed.test_bleu, result.test_bleu);
  for (const char* name : {"/last.safetensors", "/best.safetensors"}) {
    EXPECT_EQ(tensors_of(parts.out + name), tensors_of(whole.out + name)) << name;
    EXPECT_EQ(to_json(comparable(parts.out + name)), to_json(comparable(whole.out + name))) << name;
  }
}

class Interrupted : public testing::TestWithParam<std::int64_t> {};

TEST_P(Interrupted, run_goes_on_to_the_same_bits) { check_interrupted(GetParam(), DType::f32); }
TEST(Trainer, runs_of_16_bits_go_on_to_the_same_bits) {
  for (const DType precision : {DType::f16, DType::bf16}) {
    SCOPED_TRACE(name(precision));
    check_interrupted(17, precision);
  }
}

// Before the first step, inside the first epoch, at a validation, just after the epoch's end (6 batches or so), and in the last
// step.
INSTANTIATE_TEST_SUITE_P(Trainer, Interrupted, testing::Values(0, 3, 10, 17, 29), [](const auto& info) {
  return "after_step_" + std::to_string(info.param) + (info.param == 3 ? "_sanitize" : "");
});

TEST(Trainer, learns) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.hidden = 32, options.steps = 90, options.valid_every = 30, options.learning_rate = 0.01;
  TrainData data = small_data();
  data.valid.assign(data.train.begin() + 20, data.train.begin() + 40);  // 60 numbers teach nothing about others
  std::vector<Progress> validations;
  const TrainResult result = train(options, data, [&](const Progress& p) {
    if (p.validated) validations.push_back(p);
  });
  ASSERT_EQ(validations.size(), 3U);
  EXPECT_LT(validations.back().valid_loss, 0.9 * validations.front().valid_loss);
  EXPECT_GT(validations.back().tokens_per_second, 0);
  EXPECT_GE(validations.back().padding, 0);
  EXPECT_LT(validations.back().padding, 1);
  EXPECT_FALSE(result.choices.empty());
}

/// A second that passes within the first step makes a report right after it, and the validation follows without a step between.
TEST(Trainer, a_validation_right_after_a_report_has_its_rate) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 1, options.valid_every = 1;
  std::vector<Progress> seen;
  train(
      options, small_data(), [&](const Progress& p) { seen.push_back(p); },
      [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1100));
        return false;
      });
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_TRUE(!seen.front().validated && seen.back().validated);
  EXPECT_GT(seen.back().tokens_per_second, 0);
  EXPECT_EQ(seen.back().loss, seen.front().loss);
  EXPECT_EQ(seen.back().gradient_norm, seen.front().gradient_norm);
}

TEST(Trainer, goes_on_with_a_longer_run_and_ends_one_that_is_over) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 5;
  EXPECT_EQ(train(options, small_data(), {}).new_steps, 5);
  const TrainResult again = train(options, small_data(), {});
  EXPECT_TRUE(again.steps == 5 && again.new_steps == 0);
  options.steps = 8;
  const TrainResult longer = train(options, small_data(), {});
  EXPECT_TRUE(longer.steps == 8 && longer.new_steps == 3);
}

TEST(Trainer, counts_epochs) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 0, options.epochs = 2, options.valid_every = 0;
  std::vector<std::int64_t> epochs;  // in which the validations were made: the one that just ended
  const auto note = [&](const Progress& p) {
    if (p.validated) epochs.push_back(p.epoch);
  };
  EXPECT_EQ(train(options, small_data(), note).epochs, 2);
  EXPECT_EQ(epochs, (std::vector<std::int64_t>{1, 2}));
}

TEST(Trainer, tells_how_many_lines_were_validated) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 1;
  std::int64_t lines = -1;
  const auto note = [&](const Progress& p) { lines = p.valid_lines; };
  TrainData data = small_data();
  train(options, data, note);
  EXPECT_EQ(lines, std::ssize(data.valid));
  data.valid.clear();
  options.out = folder.file("another");
  train(options, data, note);
  EXPECT_EQ(lines, 0);
}

TEST(Trainer, ends_by_the_clock_that_the_checkpoint_keeps) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 2;
  train(options, small_data(), {});
  options.steps = 0, options.minutes = 1e-9;  // less than the two steps took
  EXPECT_EQ(train(options, small_data(), {}).steps, 2);
}

TEST(Trainer, names_options_that_a_resume_changed) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 1;
  train(options, small_data(), {});
  const auto message = [&](auto change) {
    TrainOptions changed = options;
    TrainData data = small_data();
    change(changed, data);
    return message_of([&] { train(changed, data, {}); });
  };
  const std::string layers = message([](TrainOptions& o, TrainData&) { o.layers = 2; });
  EXPECT_NE(layers.find("layers: expected 1 as in " + options.out + "/last.safetensors, got 2"), std::string::npos) << layers;
  EXPECT_NE(message([](TrainOptions& o, TrainData&) { o.hidden = 16; }).find("hidden: expected 8"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o, TrainData&) { o.vocabulary = 61; }).find("vocabulary: expected 60"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o, TrainData&) { o.batch_tokens = 9; }).find("batch_tokens: expected 200"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o, TrainData&) { o.seed = 2; }).find("seed: expected 1"), std::string::npos);
  EXPECT_NE(message([](TrainOptions&, TrainData& d) { d.train.pop_back(); }).find("count of training pairs"), std::string::npos);
  EXPECT_NE(message([](TrainOptions&, TrainData& d) { d.train[0].target += "s"; }).find("hash of the training text"),
            std::string::npos);
}

TEST(Trainer, names_wrong_options_sanitize) {
  const test::TemporaryFolder folder;
  const auto message = [&](auto change) {
    TrainOptions options = small_options(folder.file("run"));
    change(options);
    return message_of([&] { train(options, small_data(), {}); });
  };
  EXPECT_NE(message([](TrainOptions& o) { o.epochs = 1; }).find("exactly one of steps, epochs and minutes"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o) { o.steps = 0; }).find("exactly one of"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o) { o.dropout = 1; }).find("dropout"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o) { o.out.clear(); }).find("out:"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o) { o.learning_rate = 0; }).find("learning_rate"), std::string::npos);
  EXPECT_NE(message([](TrainOptions& o) { o.precision = DType::f64; }).find("precision: expected f32, f16 or bf16, got f64"),
            std::string::npos);
  EXPECT_NE(message_of([&] { train(small_options(folder.file("run")), {}, {}); }).find("training pair"), std::string::npos);
}

TEST(Trainer, ends_where_the_loss_diverges) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.learning_rate = 1e38, options.warmup = 0;
  EXPECT_NE(message_of([&] { train(options, small_data(), {}); }).find("diverged"), std::string::npos);
}

// The first step's loss and norm are those of the good weights before it, so only a look at what came of it can tell. With 1e36 the
// weights are still numbers and the validation's loss is not; 1e39 is infinity in f32, and no validation part is there to see it.
TEST(Trainer, saves_nothing_of_a_ruined_model_sanitize) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 1, options.warmup = 0, options.clip = 0, options.learning_rate = 1e36;
  const std::string validation = message_of([&] { train(options, small_data(), {}); });
  EXPECT_NE(validation.find("expected a finite validation loss in step 1"), std::string::npos) << validation;
  EXPECT_TRUE(std::filesystem::is_empty(options.out));

  options.learning_rate = 1e39;
  TrainData data = small_data();
  data.valid.clear();
  const std::string weight = message_of([&] { train(options, data, {}); });
  EXPECT_NE(weight.find("expected a finite weight in step 1"), std::string::npos) << weight;
  options.steps = 2;
  const std::string stopped = message_of([&] { train(options, data, {}, [asked = 0]() mutable { return asked++ == 1; }); });
  EXPECT_NE(stopped.find("expected a finite weight in step 1"), std::string::npos) << stopped;
  EXPECT_TRUE(std::filesystem::is_empty(options.out));
}

TEST(Trainer, without_validation_or_test_lines_the_last_model_is_the_best) {
  const test::TemporaryFolder folder;
  const TrainOptions options = small_options(folder.file("run"));
  TrainData data = small_data();
  data.valid.clear(), data.test.clear();
  int validations = 0;
  const TrainResult result = train(options, data, [&](const Progress& p) { validations += p.validated ? 1 : 0; });
  EXPECT_EQ(validations, 3);
  EXPECT_EQ(result.test_lines, 0);
  EXPECT_EQ(tensors_of(options.out + "/best.safetensors"), tensors_of(options.out + "/last.safetensors"));
  EXPECT_EQ(Checkpoint(options.out + "/best.safetensors").state().best_step, 30);
}

TEST(Trainer, a_run_that_is_over_keeps_the_kernels_that_it_ran) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 5, options.plan.threads = 3;
  const TrainResult first = train(options, small_data(), {});
  const TrainState before = Checkpoint(options.out + "/last.safetensors").state();
  ASSERT_FALSE(before.kernels.empty());
  EXPECT_EQ(before.threads, 3);
  const TrainResult again = train(options, small_data(), {});
  EXPECT_EQ(Checkpoint(options.out + "/last.safetensors").state().kernels, before.kernels);
  ASSERT_EQ(again.choices.size(), first.choices.size());
  for (std::size_t i = 0; i < first.choices.size(); ++i) {
    EXPECT_EQ(again.choices[i].layer, first.choices[i].layer);
    EXPECT_EQ(again.choices[i].explanation.kernel, first.choices[i].explanation.kernel);
  }
}

TEST(Trainer, removes_what_a_killed_save_left) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder.file("run"));
  options.steps = 1;
  std::filesystem::create_directories(options.out);
  for (const char* name : {"/last.safetensors.123.tmp", "/best.safetensors.4.tmp", "/notes.tmp"})
    std::ofstream(options.out + name) << "x";
  train(options, small_data(), {});
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options.out)) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"best.safetensors", "last.safetensors", "notes.tmp"}));
}

TEST(Trainer, loads_the_best_checkpoint_of_a_folder) {
  const test::TemporaryFolder folder;
  const TrainOptions options = small_options(folder.file("run"));
  train(options, small_data(), {});
  LoadedModel loaded = load_model(options.out, Device::cpu(), {});
  EXPECT_EQ(loaded.model.description().hidden, 8);
  EXPECT_EQ(loaded.tokenizer.vocabulary(), loaded.model.description().vocabulary);
  EXPECT_NE(loaded.state.find("\"best\""), std::string::npos);
  const std::vector<std::string> line{"seven"};
  EXPECT_EQ(translate(loaded.model, loaded.tokenizer, line, {}).size(), 1U);
  EXPECT_NE(message_of([&] { load_model(folder.file(""), Device::cpu(), {}); }, ErrorCode::io).find("got neither"),
            std::string::npos);
}

TEST(Corpora, split_by_hash_keeps_every_pair_once) {
  std::vector<Pair> pairs;
  for (std::int64_t n = 0; n < 2000; ++n) pairs.push_back({english(n), french(n)});
  const TrainData data = split_by_hash(pairs, true, true);
  EXPECT_EQ(data.train.size() + data.valid.size() + data.test.size(), pairs.size());
  EXPECT_GT(data.valid.size(), 0U);
  EXPECT_GT(data.test.size(), 0U);
  EXPECT_EQ(split_by_hash(pairs, false, false).train.size(), pairs.size());
}

TEST(Corpora, a_sample_of_numbers_has_no_test_number_in_training) {
  const TrainData data = sample_numbers({.train = 3000, .valid = 50, .test = 50, .seed = 3});
  std::set<std::string> seen;
  for (const std::vector<Pair>* part : {&data.train, &data.valid, &data.test})
    for (const Pair& pair : *part) EXPECT_TRUE(seen.insert(pair.source).second) << pair.source;
  EXPECT_EQ(seen.size(), 3100U);
  EXPECT_EQ(sample_numbers({.train = 10, .valid = 5, .test = 5, .seed = 3}).test[0].source, data.test[0].source);
}

}  // namespace
}  // namespace everglow::gnmt
