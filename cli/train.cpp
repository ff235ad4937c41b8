// everglow train: trains a translator on parallel text and scores it on the test part.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/progress.hpp"

#include <everglow/gnmt/trainer.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace everglow::cli {
namespace {

struct TrainArguments {
  gnmt::TrainOptions options;
  std::string train, train_source, train_target, corpus, valid, test;
  std::string device = "cpu", precision = "f32";
};

Error invalid(const std::string& what) { return {ErrorCode::invalid_argument, "train", what}; }

void add_data(CLI::App& app, TrainArguments& a) {
  app.add_option("--train", a.train, "Training pairs: UTF-8, source TAB target a line; no line is empty, but a side may be")
      ->type_name("TSV");
  app.add_option("--train-source", a.train_source, "Source lines, with --train-target")->type_name("FILE");
  app.add_option("--train-target", a.train_target, "Target lines, with --train-source")->type_name("FILE");
  app.add_option("--corpus", a.corpus, "A built-in corpus: numbers (English number words to French ones)")
      ->type_name("NAME")
      ->check(one_of({"numbers"}));
  app.add_option("--valid", a.valid, "Validation pairs; else 1 % of the training pairs by hash")->type_name("TSV");
  app.add_option("--test", a.test, "Test pairs; else 1 % of the training pairs by hash")->type_name("TSV");
  app.add_option("--max-words", a.options.max_words, "Keep pairs with at most so many words on both sides; 0: all")
      ->type_name("N")
      ->check(whole(0, "8"));
  app.add_option(
         "--out", a.options.out,
         "Folder of the checkpoints; a run that is there goes on, with the same training text, --layers, --hidden, --vocab, "
         "--precision, --batch-tokens, --max-words and --seed, while the rest may change")
      ->type_name("DIR")
      ->required();
}

void add_model(CLI::App& app, gnmt::TrainOptions& o) {
  app.add_option("--layers", o.layers, "Layers of the encoder and of the decoder (2; numbers: 1)")
      ->type_name("N")
      ->check(whole(1, "2", 64));
  app.add_option("--hidden", o.hidden, "Width of every layer (256; numbers: 128)")->type_name("N")->check(whole(1, "256", 65536));
  app.add_option("--vocab", o.vocabulary, "Pieces of both languages together (8000; numbers: 200)")
      ->type_name("N")
      ->check(whole(5, "8000", 1'000'000));
  app.add_option("--dropout", o.dropout, "Share of inputs that is dropped in training (0.2; numbers: 0.1)")
      ->type_name("P")
      ->check(number(0, 0.999, "0.2"));
  app.add_option("--label-smoothing", o.label_smoothing, "Share of the probability spread over all pieces (0.1)")
      ->type_name("P")
      ->check(number(0, 0.999, "0.1"));
}

void add_run(CLI::App& app, gnmt::TrainOptions& o) {
  app.add_option("--batch-tokens", o.batch_tokens, "Rows times longest side of a batch (1500; numbers: 2000)")
      ->type_name("N")
      ->check(whole(1, "1500", 100'000'000));
  app.add_option("--learning-rate", o.learning_rate, "Adam's rate after the warm-up (0.003; numbers: 0.004)")
      ->type_name("R")
      ->check(number(1e-12, 10, "0.003"));
  app.add_option("--warmup", o.warmup, "Steps in which the rate rises (200)")->type_name("N")->check(whole(0, "200"));
  app.add_option("--decay-start", o.decay_start,
                 "Part of the run after which the rate is halved, again at each further tenth (0.6)")
      ->type_name("P")
      ->check(number(0, 1, "0.6"));
  app.add_option("--clip", o.clip, "Largest norm of the gradient; 0: no clipping (5)")->type_name("C")->check(number(0, 1e9, "5"));
  auto* steps = app.add_option("--steps", o.steps, "Length of the run in optimiser steps")->type_name("N")->check(whole(1, "5000"));
  auto* epochs = app.add_option("--epochs", o.epochs, "Length of the run in passes over the training text")->type_name("N");
  auto* minutes = app.add_option("--minutes", o.minutes, "Length of the run in time (20, where no length is given; numbers: 2)");
  epochs->check(whole(1, "10"))->excludes(steps);
  minutes->type_name("M")->check(number(0.001, 1e6, "20"))->excludes(steps)->excludes(epochs);
  app.add_option("--until-exact", o.until_exact, "End when so many per cent of the validation lines are exact")
      ->type_name("P")
      ->check(number(0, 100, "99.5"));
  app.add_option("--valid-every", o.valid_every, "Steps between validations; 0: at the end of each epoch")
      ->type_name("N")
      ->check(whole(0, "500"));
  app.add_option("--seed", o.seed, "Seed of weights, order and dropout (1)")->type_name("N")->check(whole(0, "1", 9e15));
}

/// Values that suit number words, where the user gave none.
void suit_numbers(const CLI::App& app, gnmt::TrainOptions& o) {
  const auto otherwise = [&app](const char* option, auto& value, auto fitting) {
    if (app.count(option) == 0) value = fitting;
  };
  otherwise("--layers", o.layers, 1);
  otherwise("--hidden", o.hidden, 128);
  otherwise("--vocab", o.vocabulary, 200);
  otherwise("--dropout", o.dropout, 0.1);
  otherwise("--batch-tokens", o.batch_tokens, 2000);
  otherwise("--learning-rate", o.learning_rate, 4e-3);
}

void check_sources(const TrainArguments& a) {
  if (a.train_source.empty() != a.train_target.empty())
    throw invalid(
        "expected --train-source and --train-target together, got one of them; for example --train-source a.en --train-target "
        "a.fr");
  const int given = (a.train.empty() ? 0 : 1) + (a.train_source.empty() ? 0 : 1) + (a.corpus.empty() ? 0 : 1);
  if (given != 1)
    throw invalid(
        fmt::format("expected one of --train TSV, --train-source F --train-target F, and --corpus numbers, got {}; for example "
                    "everglow train --train pairs.tsv --out model",
                    given == 0 ? "none" : "more than one"));
  if (!a.corpus.empty() && (!a.valid.empty() || !a.test.empty()))
    throw invalid("expected no --valid and no --test with --corpus, which brings its own, got one");
  const DType precision = parse_dtype(a.precision);
  if (precision != DType::f32 && precision != DType::f16 && precision != DType::bf16)
    throw invalid(fmt::format("--precision: expected f32, f16 or bf16, got {}", a.precision));
  if (a.options.out.empty()) throw invalid("--out: expected a folder, got an empty name; for example --out model");
}

gnmt::TrainData read_data(const TrainArguments& a) {
  if (!a.corpus.empty()) return gnmt::sample_numbers({.seed = a.options.seed});
  std::vector<gnmt::Pair> pairs = a.train.empty() ? gnmt::read_pairs(a.train_source, a.train_target) : gnmt::read_pairs(a.train);
  gnmt::TrainData data = gnmt::split_by_hash(std::move(pairs), a.valid.empty(), a.test.empty());
  if (!a.valid.empty()) data.valid = gnmt::read_pairs(a.valid);
  if (!a.test.empty()) data.test = gnmt::read_pairs(a.test);
  return data;
}

/// The parts of the text, without pairs that are too long, once device and folder are known to be there.
gnmt::TrainData prepare(const TrainArguments& a) {
  const gnmt::TrainOptions& o = a.options;
  [[maybe_unused]] const Buffer usable(1, o.device);  // throws where the device is not there
  gnmt::TrainData data = read_data(a);
  const std::size_t read = data.train.size();
  for (std::vector<gnmt::Pair>* part : {&data.train, &data.valid, &data.test})
    *part = gnmt::at_most_words(std::move(*part), o.max_words);
  if (data.train.empty())
    throw invalid(read == 0 ? "expected at least one training pair, got none"
                            : fmt::format("--max-words {}: none of the {} training pairs is so short", o.max_words, grouped(read)));
  std::error_code failed;
  std::filesystem::create_directories(o.out, failed);
  if (failed) throw Error(ErrorCode::io, "train", fmt::format("--out: cannot make the folder \"{}\": {}", o.out, failed.message()));
  return data;
}

void print_begin(const gnmt::TrainData& data, const std::string& out) {
  const bool resumed = std::filesystem::exists(std::filesystem::path(out) / "last.safetensors");
  fmt::print("{} training pairs, {} of validation, {} of test; {} {}\n", grouped(std::ssize(data.train)),
             grouped(std::ssize(data.valid)), grouped(std::ssize(data.test)), resumed ? "going on with" : "starting", out);
  if (data.valid.empty()) fmt::print("no validation pairs, so the last weights will count as the best; --valid TSV brings some\n");
  std::fflush(stdout);
}

/// What a run came to; the last line is the score.
void print_end(const TrainArguments& a, const gnmt::TrainResult& result) {
  const gnmt::TrainOptions& o = a.options;
  if (result.new_steps == 0)
    fmt::print("nothing left to do: {} has trained its {} steps; a longer --steps, --epochs or --minutes goes on\n", o.out,
               grouped(result.steps));
  fmt::print("everglow translate --model {} translates with it\n", o.out);
  if (result.test_lines == 0) {
    fmt::print("test BLEU: no test lines\n");
    return;
  }
  if (!a.corpus.empty() || o.until_exact > 0) fmt::print("test exact {:.1f} %\n", result.test_exact);
  fmt::print("test BLEU {:.2f} (13a, beam {}, {} lines)\n", result.test_bleu, o.beam, result.test_lines);
}

int train(const CLI::App& app, TrainArguments a) {
  gnmt::TrainOptions& o = a.options;
  check_sources(a);
  if (!a.corpus.empty()) suit_numbers(app, o);
  if (o.steps == 0 && o.epochs == 0 && o.minutes == 0) o.minutes = a.corpus.empty() ? 20 : 2;
  o.device = parse_device(a.device);
  o.precision = parse_dtype(a.precision);
  const gnmt::TrainData data = prepare(a);
  print_begin(data, o.out);
  ProgressPrinter printer(stdout);
  const Interrupt interrupt;
  const gnmt::TrainResult result = gnmt::train(o, data, std::ref(printer), [] { return Interrupt::came(); });
  printer.finish();
  fmt::print("{} steps, {} tokens in {}\n", grouped(result.steps), grouped(result.tokens), clock_text(result.seconds));
  if (result.interrupted) {
    fmt::print("stopped and saved; the same command goes on\n");
    return Interrupt::status();
  }
  print_end(a, result);
  return 0;
}

}  // namespace

void add_train(CLI::App& tool, int& status) {
  CLI::App& app = *tool.add_subcommand("train", "Train a translator on parallel text");
  const auto arguments = std::make_shared<TrainArguments>();
  app.footer("everglow train --train pairs.tsv --out model --epochs 10");
  add_data(app, *arguments);
  add_model(app, arguments->options);
  add_run(app, arguments->options);
  app.add_option("--threads", arguments->options.plan.threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  app.add_option("--device", arguments->device, "cpu, or cuda:N where CUDA is built and a card is there (cpu)")
      ->type_name("DEVICE");
  app.add_option("--precision", arguments->precision,
                 "Type of activations and of the weights that layers read: f32, f16 or bf16 (f32); the optimiser keeps f32 ones")
      ->type_name("TYPE");
  app.callback([&app, &status, arguments] { status = train(app, *arguments); });
}

}  // namespace everglow::cli
