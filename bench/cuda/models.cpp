// Training steps of the translation model on a card, by the clock of the host: whole steps, with what prepares and starts them.
#include "bench/cuda/models.hpp"
#include "bench/cuda/card.hpp"
#include "bench/gnmt_batches.hpp"

#include <everglow/gnmt/model.hpp>
#include <everglow/gnmt/plan.hpp>

#include <chrono>

namespace everglow::bench {
namespace {

struct ModelCase {
  std::int64_t hidden, layers, vocabulary, batch, length;  // length: of both sides, with the end of sentence
  DType dtype = DType::bf16;
};

void train_model(const ModelCase& c, Device card, const std::function<void(const Record&)>& take, const std::string& line) {
  const gnmt::ModelDescription description{.hidden = c.hidden, .layers = c.layers, .vocabulary = c.vocabulary, .dtype = c.dtype};
  gnmt::Model model(description, card, {});
  model.initialise(1);
  std::vector<gnmt::Batch> batches;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) batches.push_back(random_batch(c.batch, c.length - 1, c.vocabulary, seed));
  std::uint64_t number = 0;
  const double rate = 1e-4;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i, ++number)
      model.train_step(batches[number % batches.size()], {.seed = 1, .step = number, .clip = 5, .rates = std::span(&rate, 1)});
    model.take_results(true);
  };
  constexpr int warmup = 8, samples = 5, steps_a_sample = 10;
  steps(warmup);
  const auto explained = gnmt::explain(description, {c.batch, c.length}, card, {.advice = false});
  Record record{.op = "gnmt", .line = line, .direction = "train", .kernel = "everglow.gnmt", .dtype = std::string(name(c.dtype))};
  const auto opened = open_card(card);
  record.device = opened->name, record.driver = opened->driver, record.nvcc = opened->toolkit, record.isa = "cuda";
  record.chosen = true, record.warmup = warmup;
  for (int sample = 0; sample < samples; ++sample) {
    const auto begin = std::chrono::steady_clock::now();
    steps(steps_a_sample);
    record.samples_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                                steps_a_sample);
  }
  record.median_us = quantile(record.samples_us, 0.5);
  record.p10 = quantile(record.samples_us, 0.1), record.p90 = quantile(record.samples_us, 0.9);
  record.tokens = 2.0 * static_cast<double>(c.batch * c.length), record.pairs = static_cast<double>(c.batch);
  record.predicted_us = explained.time_us, record.floor_us = explained.floor_us;
  take(record);
}

}  // namespace

void train_models(const std::string& words, Device card, const std::function<void(const Record&)>& take) {
  std::vector<ModelCase> cases{{512, 2, 8000, 768, 16},   {1024, 4, 32320, 128, 50}, {1024, 4, 32320, 64, 50},
                               {1024, 4, 32320, 256, 50}, {1024, 4, 32320, 512, 50}, {1024, 4, 32320, 64, 256}};
  cases.push_back({1024, 4, 32320, 128, 50, DType::f16});
  cases.push_back({512, 2, 8000, 768, 16, DType::f16});
  cases.push_back({512, 2, 8000, 768, 16, DType::f32});
  for (const ModelCase& c : cases) {
    const auto field = [](const char* name, std::int64_t value) { return std::string(" ") + name + '=' + std::to_string(value); };
    const std::string line = "gnmt" + field("layers", c.layers) + field("hidden", c.hidden) + field("vocabulary", c.vocabulary) +
                             field("batch", c.batch) + field("length", c.length) + " dtype=" + std::string(name(c.dtype));
    if (line.find(words) != std::string::npos) train_model(c, card, take, line);
  }
}

}  // namespace everglow::bench
