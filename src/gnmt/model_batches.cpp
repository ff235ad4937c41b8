// Batches of about equal length by token count, in an order that a seed fixes.
#include <everglow/error.hpp>
#include <everglow/gnmt/corpus.hpp>

#include "gnmt/hash.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace everglow::gnmt {
namespace {

void fill_source(Batch& batch, std::int64_t row, std::span<const std::int32_t> pieces) {
  const auto length = static_cast<std::int64_t>(pieces.size());
  for (std::int64_t s = 0; s < length; ++s) batch.source[s * batch.rows + row] = pieces[s];
  batch.source[length * batch.rows + row] = eos_id;
  batch.source_lengths[row] = static_cast<std::int32_t>(length + 1);
  batch.source_tokens += length + 1;
}

void fill_target(Batch& batch, std::int64_t row, std::span<const std::int32_t> pieces) {
  const auto length = static_cast<std::int64_t>(pieces.size());
  batch.decoder_input[row] = bos_id;
  for (std::int64_t t = 0; t < length; ++t) {
    batch.decoder_input[(t + 1) * batch.rows + row] = pieces[t];
    batch.targets[t * batch.rows + row] = pieces[t];
  }
  batch.targets[length * batch.rows + row] = eos_id;
  batch.target_lengths[row] = static_cast<std::int32_t>(length + 1);
  batch.target_tokens += length + 1;
}

std::int64_t steps_of(const std::vector<std::int32_t>& pieces) { return static_cast<std::int64_t>(pieces.size()) + 1; }

}  // namespace

Batch make_batch(std::span<const Example> examples, std::span<const std::int64_t> indices) {
  Batch batch;
  batch.rows = static_cast<std::int64_t>(indices.size());
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= static_cast<std::int64_t>(examples.size()))
      throw Error(ErrorCode::invalid_argument, "corpus.make_batch",
                  "indices: expected 0 <= index < " + std::to_string(examples.size()) + ", got " + std::to_string(index));
    batch.source_steps = std::max(batch.source_steps, steps_of(examples[index].source));
    batch.target_steps = std::max(batch.target_steps, steps_of(examples[index].target));
  }
  batch.source.assign(batch.source_steps * batch.rows, pad_id);
  batch.source_lengths.resize(batch.rows);
  batch.decoder_input.assign(batch.target_steps * batch.rows, pad_id);
  batch.targets.assign(batch.target_steps * batch.rows, pad_id);
  batch.target_lengths.resize(batch.rows);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    fill_source(batch, row, examples[indices[row]].source);
    fill_target(batch, row, examples[indices[row]].target);
  }
  return batch;
}

Batch make_source_batch(std::span<const std::vector<std::int32_t>> sources) {
  Batch batch;
  batch.rows = static_cast<std::int64_t>(sources.size());
  for (const auto& source : sources) batch.source_steps = std::max(batch.source_steps, steps_of(source));
  batch.source.assign(batch.source_steps * batch.rows, pad_id);
  batch.source_lengths.resize(batch.rows);
  for (std::int64_t row = 0; row < batch.rows; ++row) fill_source(batch, row, sources[row]);
  return batch;
}

std::vector<std::vector<std::int64_t>> make_epoch(std::span<const Example> examples, std::int64_t tokens, std::uint64_t seed) {
  if (tokens < 1)
    throw Error(ErrorCode::invalid_argument, "corpus.make_epoch", "tokens: expected 1 or more, got " + std::to_string(tokens));
  SplitMix64 random(seed);
  struct Item {
    double source;  // noise below 2 mixes neighbouring lengths, so that an epoch's batches differ from the last epoch's
    std::int64_t target, index;
    auto operator<=>(const Item&) const = default;
  };
  std::vector<Item> items(examples.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    items[i] = {static_cast<double>(examples[i].source.size()) + 2 * random.unit(), steps_of(examples[i].target),
                static_cast<std::int64_t>(i)};
  std::sort(items.begin(), items.end());

  std::vector<std::vector<std::int64_t>> batches;
  std::int64_t longest = 0;
  for (const Item& item : items) {
    const std::int64_t side = std::max(steps_of(examples[item.index].source), item.target);
    longest = std::max(longest, side);
    if (batches.empty() || (static_cast<std::int64_t>(batches.back().size()) + 1) * longest > tokens) {
      batches.emplace_back();
      longest = side;
    }
    batches.back().push_back(item.index);
  }
  for (std::size_t i = batches.size(); i > 1; --i) std::swap(batches[i - 1], batches[random.next() % i]);
  return batches;
}

}  // namespace everglow::gnmt
