// The translation model as a benchmark: a training step, and the loss without gradients, on random sentences of one length.
#include "bench/problem.hpp"

#include <everglow/gnmt/model.hpp>

namespace everglow::bench {
namespace {

constexpr std::int64_t batches = 4;  // in turn; the model itself is far larger than the caches

/// Pieces above the special ones; every sentence is as long as the others, so nothing is padding.
gnmt::Batch random_batch(const cases::Case& c, std::int64_t vocabulary, std::uint64_t seed) {
  constexpr std::int64_t special = 4;
  const std::int64_t rows = c.integer("batch", 1), length = c.integer("length", 1);
  if (rows < 1 || length < 1) throw std::invalid_argument("case: batch and length: expected at least 1");
  if (vocabulary <= special) throw std::invalid_argument("case: vocabulary: expected more than 4 pieces");
  TensorSets random;
  const int words = random.add_indices(DType::i32, {rows, 2, length}, vocabulary - special);
  random.allocate(0, seed);
  const auto* word = static_cast<const std::int32_t*>(random.at(words, 0).data);
  std::vector<gnmt::Example> examples(static_cast<std::size_t>(rows));
  std::vector<std::int64_t> indices;
  for (gnmt::Example& example : examples) {
    for (std::vector<std::int32_t>* side : {&example.source, &example.target})
      for (std::int64_t i = 0; i < length; ++i) side->push_back(static_cast<std::int32_t>(special) + *word++);
    indices.push_back(std::ssize(indices));
  }
  return gnmt::make_batch(examples, indices);
}

}  // namespace

Problem gnmt_problem(const cases::Case& c, const Settings& settings) {
  const gnmt::ModelDescription d{.hidden = c.integer("hidden", 1),
                                 .layers = c.integer("layers", 1),
                                 .vocabulary = c.integer("vocabulary", 1),
                                 .dropout = static_cast<float>(c.number("dropout", 0.2)),
                                 .dtype = dtype_of(c)};
  const auto data = std::make_shared<std::vector<gnmt::Batch>>();
  for (std::int64_t i = 0; i < batches; ++i)
    data->push_back(random_batch(c, d.vocabulary, settings.seed + static_cast<std::uint64_t>(i)));
  const auto model = std::make_shared<gnmt::Model>(d, Device::cpu(), PlanOptions{.threads = settings.threads});
  model->initialise(settings.seed);
  const auto train = [=](std::int64_t i) {
    model->forward_backward((*data)[static_cast<std::size_t>(i)], 1, static_cast<std::uint64_t>(i));
    model->apply(1e-4, 5);
  };
  const auto evaluate = [=](std::int64_t i) { model->evaluate((*data)[static_cast<std::size_t>(i)]); };
  const gnmt::Batch& one = data->front();
  Direction step{.name = "train"};
  step.tokens = static_cast<double>(one.source_tokens + one.target_tokens), step.pairs = static_cast<double>(one.rows);
  Direction loss = step;
  loss.name = "evaluate";
  return {std::string(name(d.dtype)), {step, loss}, {{"everglow.gnmt", batches, {{{}, train}, {{}, evaluate}}}}};
}

}  // namespace everglow::bench
