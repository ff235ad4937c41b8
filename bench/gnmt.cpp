// The translation model as a benchmark: training steps, and the loss without gradients, on random sentences of one length or on the
// number words of the demo. bench/gnmt_torch.py makes the same batches of number words.
#include "bench/gnmt_batches.hpp"
#include "bench/problem.hpp"

#include <everglow/gnmt/numbers.hpp>
#include <everglow/gnmt/plan.hpp>

#include <algorithm>
#include <map>

namespace everglow::bench {
namespace {

constexpr std::int64_t batches = 4;  // in turn; the model itself is far larger than the caches

using Words = std::vector<std::string>;

Words words_of(const std::string& text) {
  Words out(1);
  for (const char c : text) {
    if (c != ' ' && c != '-')
      out.back() += c;
    else
      out.emplace_back();
  }
  return out;
}

/// Every word of both languages has a number, in the order of its bytes, after the special ones.
std::map<std::string, std::int32_t> numbered(const std::vector<std::pair<Words, Words>>& pairs, std::int64_t vocabulary) {
  std::map<std::string, std::int32_t> out;
  for (const auto& [source, target] : pairs)
    for (const Words* side : {&source, &target})
      for (const std::string& word : *side) out.emplace(word, 0);
  if (std::ssize(out) + special > vocabulary)
    throw std::invalid_argument("case: vocabulary: expected at least " + std::to_string(std::ssize(out) + special) +
                                " for the number words, got " + std::to_string(vocabulary));
  auto next = static_cast<std::int32_t>(special);
  for (auto& [word, number] : out) number = next++;
  return out;
}

/// Numbers that a stride spreads over all of them, sorted by the length of the source as the trainer sorts, and from the whole
/// range of lengths `batches` batches.
std::vector<gnmt::Batch> number_batches(std::int64_t rows, std::int64_t vocabulary, std::uint64_t seed) {
  constexpr std::int64_t stride = 7919, drawn_batches = 32;
  const std::int64_t drawn = drawn_batches * rows;
  if (drawn > gnmt::number_limit) throw std::invalid_argument("case: batch: expected at most 31250 with text=numbers");
  std::vector<std::pair<Words, Words>> pairs;
  for (std::int64_t i = 0; i < drawn; ++i) {
    const auto start = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(gnmt::number_limit));
    const std::int64_t n = (start + i * stride) % gnmt::number_limit;
    pairs.emplace_back(words_of(gnmt::english(n)), words_of(gnmt::french(n)));
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first.size() < b.first.size(); });
  const auto numbers = numbered(pairs, vocabulary);
  std::vector<gnmt::Batch> out;
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::int64_t first = (2 * b + 1) * drawn / (2 * batches) - rows / 2;
    std::vector<gnmt::Example> examples;
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto& [source, target] = pairs[static_cast<std::size_t>(first + i)];
      gnmt::Example& example = examples.emplace_back();
      for (const std::string& word : source) example.source.push_back(numbers.at(word));
      for (const std::string& word : target) example.target.push_back(numbers.at(word));
      indices.push_back(i);
    }
    out.push_back(gnmt::make_batch(examples, indices));
  }
  return out;
}

/// A run takes one of the random batches, which are alike, or all of number words, which are not.
struct Data {
  std::vector<gnmt::Batch> all;
  std::int64_t runs = 1;  // that make an epoch
  std::int64_t batches_a_run() const { return std::ssize(all) / runs; }
};

Data data_of(const cases::Case& c, std::int64_t vocabulary, std::uint64_t seed) {
  const std::int64_t rows = c.integer("batch", 1), length = c.integer("length", 0);
  const bool numbers = named<int>(c, "text", {"random", "numbers"}) == 1;
  if (rows < 1) throw std::invalid_argument("case: batch: expected at least 1");
  if (numbers == c.has("length") || (!numbers && length < 1))
    throw std::invalid_argument("case: expected length of at least 1, or text=numbers, whose sentences are as long as they are");
  if (vocabulary <= special) throw std::invalid_argument("case: vocabulary: expected more than 4 pieces");
  if (numbers) return {number_batches(rows, vocabulary, seed), 1};
  Data out{{}, batches};
  for (std::int64_t i = 0; i < batches; ++i)
    out.all.push_back(random_batch(rows, length, vocabulary, seed + static_cast<std::uint64_t>(i)));
  return out;
}

/// Sentences of the mean length: a lower bound, for what is padding is no floor.
Expected expected_of(const gnmt::ModelDescription& d, const Data& data, const Settings& settings) {
  Expected out;
  for (std::int64_t i = 0; i < data.batches_a_run(); ++i) {
    const gnmt::Batch& one = data.all[static_cast<std::size_t>(i)];
    const std::int64_t mean = (one.source_tokens + one.target_tokens) / (2 * one.rows);
    const auto step =
        gnmt::explain(d, {.batch = one.rows, .length = mean}, settings.device, {.threads = settings.threads, .advice = false});
    out.predicted_us += step.time_us, out.floor_us += step.floor_us;
  }
  return out;
}

}  // namespace

Problem gnmt_problem(const cases::Case& c, const Settings& settings) {
  const gnmt::ModelDescription d{.hidden = c.integer("hidden", 1),
                                 .layers = c.integer("layers", 1),
                                 .vocabulary = c.integer("vocabulary", 1),
                                 .dropout = static_cast<float>(c.number("dropout", 0.2)),
                                 .dtype = dtype_of(c)};
  const auto data = std::make_shared<const Data>(data_of(c, d.vocabulary, settings.seed));
  const auto model = std::make_shared<gnmt::Model>(d, Device::cpu(), PlanOptions{.threads = settings.threads});
  model->initialise(settings.seed);
  const auto each = [data](std::int64_t run, const auto& call) {
    for (std::int64_t i = 0; i < data->batches_a_run(); ++i) {
      const std::int64_t number = run * data->batches_a_run() + i;
      call(data->all[static_cast<std::size_t>(number)], static_cast<std::uint64_t>(number));
    }
  };
  const auto train = [=](std::int64_t run) {
    each(run, [&](const gnmt::Batch& batch, std::uint64_t number) {
      model->forward_backward(batch, 1, number);
      model->apply(1e-4, 5);
    });
  };
  const auto evaluate = [=](std::int64_t run) {
    each(run, [&](const gnmt::Batch& batch, std::uint64_t) { model->evaluate(batch); });
  };
  Direction step{.name = "train"};
  each(0, [&](const gnmt::Batch& batch, std::uint64_t) {
    step.tokens += static_cast<double>(batch.source_tokens + batch.target_tokens), step.pairs += static_cast<double>(batch.rows);
  });
  Direction loss = step;
  loss.name = "evaluate";
  return {std::string(name(d.dtype)),
          {step, loss},
          {{"everglow.gnmt", data->runs, {{{}, train}, {{}, evaluate}}, {expected_of(d, *data, settings), {}}, true}}};
}

}  // namespace everglow::bench
