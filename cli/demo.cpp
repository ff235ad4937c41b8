// everglow demo: trains on the built-in number words and shows what came of it, from text to attention to kernels.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/picture.hpp"
#include "cli/progress.hpp"

#include <everglow/gnmt/trainer.hpp>

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

namespace everglow::cli {
namespace {

constexpr double exact_enough = 99;  // per cent of the test numbers, or the demo fails

/// A new folder of this run alone: a name made of the process number would come back, in a container even at once.
std::filesystem::path new_folder() {
  std::error_code fault;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(fault);
  if (fault) {
    const char* const wish = std::getenv("TMPDIR");
    throw Error(ErrorCode::io, "demo",
                fmt::format("TMPDIR: expected a folder, got \"{}\" ({}); --out names another", wish == nullptr ? "" : wish,
                            fault.message()));
  }
  std::string path = (parent / "everglow-demo-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    throw Error(ErrorCode::io, "demo", fmt::format("{}: cannot make the folder: {}", path, std::strerror(errno)));
  return path;
}

/// A folder for the checkpoints that is removed at the end, where the user named none.
class Folder {
 public:
  explicit Folder(const std::string& given)
      : temporary_(given.empty()), path_(temporary_ ? new_folder() : std::filesystem::path(given)) {}
  ~Folder() {
    std::error_code ignored;
    if (temporary_) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  bool temporary_;
  std::filesystem::path path_;
};

/// What reaches 99 % soonest on two cores: small layers, pieces that are nearly words, a high rate.
gnmt::TrainOptions fitting() {
  gnmt::TrainOptions o;
  o.layers = 1;
  o.hidden = 128;
  o.vocabulary = 200;
  o.dropout = 0.1;
  o.batch_tokens = 2000;
  o.learning_rate = 4e-3;
  o.warmup = 100;
  o.steps = 2000;
  o.valid_every = 100;
  o.until_exact = 99.8;  // 499 of 500: a model that had just come to 498 missed 9 of the 500 numbers that it is tested on
  return o;
}

void show_examples(std::span<const gnmt::Pair> test, std::span<const std::string> found) {
  fmt::print("\nfive of the test numbers, none of which was in training:\n");
  for (std::size_t i = 0; i < std::min<std::size_t>(5, test.size()); ++i) {
    const bool right = found[i] == test[i].target;
    fmt::print("  {}\n    {}   [{}]\n", test[i].source, found[i], right ? "right" : "wrong: " + test[i].target);
  }
}

std::vector<std::string> labels(const gnmt::Tokenizer& tokenizer, std::span<const std::int32_t> pieces) {
  std::vector<std::string> out;
  for (const std::int32_t id : pieces) out.push_back(tokenizer.piece(id));
  out.emplace_back("</s>");
  return out;
}

/// Draws the first translation that fits a terminal.
void show_attention(gnmt::LoadedModel& loaded, std::span<const gnmt::Pair> test, std::span<const std::string> found) {
  std::size_t chosen = 0;
  gnmt::Example example;
  for (std::size_t i = test.size(); i-- > 0;) {
    const gnmt::Example candidate{loaded.tokenizer.encode(test[i].source), loaded.tokenizer.encode(found[i])};
    if (example.source.empty() || (candidate.source.size() >= 6 && candidate.source.size() <= 12)) chosen = i, example = candidate;
  }
  if (example.source.empty()) return;
  const std::int64_t index = 0;
  const gnmt::Batch pair = gnmt::make_batch({&example, 1}, {&index, 1});
  fmt::print("\nwhere the decoder looked for each piece (down) of \"{}\" in the source (across):\n\n{}", found[chosen],
             attention_picture(loaded.model.attention(pair), labels(loaded.tokenizer, example.source),
                               labels(loaded.tokenizer, example.target), 78));
}

void show_kernels(std::span<const gnmt::LayerChoice> choices) {
  fmt::print("\nwhat each layer ran:\n");
  for (const gnmt::LayerChoice& choice : choices) {
    fmt::print("  {}: {}\n", choice.layer, choice.explanation.kernel);
    for (const ExplanationRow& row : choice.explanation.rows)
      if (!row.taken) fmt::print("      not {}: {}\n", row.name, row.reason);
  }
}

int demo(gnmt::TrainOptions options, const std::string& out) {
  const Folder folder(out);
  options.out = folder.path();
  gnmt::TrainData data = gnmt::sample_numbers({.seed = options.seed});
  const std::vector<gnmt::Pair> test = std::exchange(data.test, {});
  fmt::print("training on {} numbers as English and French words, for example\n  {} -> {}\n", grouped(std::ssize(data.train)),
             data.train.back().source, data.train.back().target);
  std::fflush(stdout);
  ProgressPrinter printer(stdout);
  const Interrupt interrupt;
  const gnmt::TrainResult result = gnmt::train(options, data, std::ref(printer), [] { return Interrupt::came(); });
  printer.finish();
  if (result.interrupted) {
    fmt::print("stopped before the end\n");
    return Interrupt::status();
  }
  fmt::print("trained {} steps, {} tokens in {}\n", grouped(result.steps), grouped(result.tokens), clock_text(result.seconds));

  gnmt::LoadedModel loaded = gnmt::load_model(folder.path(), options.device, options.plan);
  std::vector<std::string> sources;
  for (const gnmt::Pair& pair : test) sources.push_back(pair.source);
  const std::vector<std::string> found = gnmt::translate(loaded.model, loaded.tokenizer, sources, {.beam = options.beam});
  show_examples(test, found);
  show_attention(loaded, test, found);
  show_kernels(result.choices);
  std::size_t exact = 0;
  for (std::size_t i = 0; i < test.size(); ++i) exact += found[i] == test[i].target ? 1 : 0;
  fmt::print("\nexact: {} of {}\n", exact, test.size());
  return 100.0 * static_cast<double>(exact) >= exact_enough * static_cast<double>(test.size()) ? 0 : 1;
}

}  // namespace

void add_demo(CLI::App& tool, int& status) {
  CLI::App& app = *tool.add_subcommand("demo", "Train on number words, translate unseen ones, show the attention and the kernels");
  const auto options = std::make_shared<gnmt::TrainOptions>(fitting());
  const auto out = std::make_shared<std::string>();
  app.footer("everglow demo --threads 2");
  app.add_option("--out", *out, "Keep the checkpoints in this folder; by default they are removed at the end")->type_name("DIR");
  app.add_option("--seed", options->seed, "Seed of numbers, weights, order and dropout (1)")
      ->type_name("N")
      ->check(whole(0, "1", 9e15));
  app.add_option("--steps", options->steps, "Most optimiser steps")->type_name("N")->check(whole(1, "2000"));
  app.add_option("--threads", options->plan.threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  const auto device = std::make_shared<std::string>("cpu");
  app.add_option("--device", *device, "cpu, or cuda:N where CUDA is built and a card is there (cpu)")->type_name("DEVICE");
  app.callback([&status, options, out, device] {
    options->device = parse_device(*device);
    status = demo(*options, *out);
  });
}

}  // namespace everglow::cli
