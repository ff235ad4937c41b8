// Parallel text: reading with checks that name the line, filtering by words, and batches of about equal length.
#include <everglow/error.hpp>
#include <everglow/gnmt/corpus.hpp>
#include <everglow/plan.hpp>

#include "gnmt/hash.hpp"
#include "unicode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

namespace everglow::gnmt {

namespace {

constexpr std::string_view read_where = "corpus.read";

std::string read_file(const std::string& file) {
  const auto fail = [&] { throw Error(ErrorCode::io, read_where, fmt::format("{}: {}", file, std::strerror(errno))); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"), std::fclose);
  if (!stream) fail();
  std::string text;
  std::size_t used = 0;
  do {
    text.resize(std::max<std::size_t>(2 * used, 1 << 16));
    used += std::fread(text.data() + used, 1, text.size() - used, stream.get());
  } while (used == text.size());
  if (std::ferror(stream.get())) fail();
  text.resize(used);
  return text;
}

/// The lines of a file: no line ends (LF or CRLF), no byte order mark, valid UTF-8.
std::vector<std::string_view> lines_of(const std::string& file, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const std::size_t bad = find_invalid_utf8(line); bad != std::string_view::npos)
      throw Error(ErrorCode::io, read_where,
                  fmt::format("{}:{}: expected UTF-8, got byte 0x{:02X} at byte {} of the line", file, lines.size() + 1,
                              static_cast<unsigned char>(line[bad]), bad + 1));
    lines.push_back(line);
  }
  return lines;
}

std::int64_t count_words(std::string_view line) {
  std::int64_t words = 0;
  bool inside = false;
  for (std::size_t i = 0; i < line.size();) {
    const std::int32_t point = next_code_point(line, i);
    if (point < 0) ++i;  // a stray byte is part of a word
    const bool space = point >= 0 && is_space(point);
    words += !space && !inside;
    inside = !space;
  }
  return words;
}

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

std::size_t find_invalid_utf8(std::string_view line) {
  for (std::size_t i = 0; i < line.size();)
    if (next_code_point(line, i) < 0) return i;
  return std::string_view::npos;
}

std::vector<Pair> read_pairs(const std::string& tsv_file) {
  const std::string text = read_file(tsv_file);
  std::vector<Pair> pairs;
  for (const std::string_view line : lines_of(tsv_file, text)) {
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    if (tabs != 1)
      throw Error(ErrorCode::io, read_where,
                  fmt::format("{}:{}: expected source, one tab, target; got {}", tsv_file, pairs.size() + 1,
                              line.empty() ? "an empty line"
                              : tabs == 0  ? "no tab"
                                           : fmt::format("{} tabs", tabs)));
    const std::size_t tab = line.find('\t');
    pairs.push_back({std::string(line.substr(0, tab)), std::string(line.substr(tab + 1))});
  }
  return pairs;
}

std::vector<Pair> read_pairs(const std::string& source_file, const std::string& target_file) {
  const std::string source_text = read_file(source_file), target_text = read_file(target_file);
  const auto sources = lines_of(source_file, source_text), targets = lines_of(target_file, target_text);
  if (sources.size() != targets.size())
    throw Error(ErrorCode::io, read_where,
                fmt::format("expected two files of equally many lines, got {} in \"{}\" and {} in \"{}\"", sources.size(),
                            source_file, targets.size(), target_file));
  std::vector<Pair> pairs(sources.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = {std::string(sources[i]), std::string(targets[i])};
  return pairs;
}

std::vector<Pair> at_most_words(std::vector<Pair> pairs, std::int64_t words) {
  if (words < 0)
    throw Error(ErrorCode::invalid_argument, "corpus.at_most_words", fmt::format("words: expected 0 or more, got {}", words));
  if (words > 0)
    std::erase_if(pairs, [&](const Pair& pair) { return count_words(pair.source) > words || count_words(pair.target) > words; });
  return pairs;
}

std::vector<Example> encode(const Tokenizer& tokenizer, std::span<const Pair> pairs, int threads) {
  std::vector<Example> examples(pairs.size());
  const auto most = static_cast<std::size_t>(threads > 0 ? threads : default_threads());
  const std::size_t workers = std::min(most, pairs.size() / 1024 + 1);
  std::vector<std::exception_ptr> failures(workers);
  const auto work = [&](std::size_t worker) {
    try {
      const std::size_t begin = pairs.size() * worker / workers, end = pairs.size() * (worker + 1) / workers;
      for (std::size_t i = begin; i < end; ++i)
        examples[i] = {tokenizer.encode(pairs[i].source), tokenizer.encode(pairs[i].target)};
    } catch (...) {
      failures[worker] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 1; worker < workers; ++worker) threads.emplace_back(work, worker);
    work(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return examples;
}

Batch make_batch(std::span<const Example> examples, std::span<const std::int64_t> indices) {
  Batch batch;
  batch.rows = static_cast<std::int64_t>(indices.size());
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= static_cast<std::int64_t>(examples.size()))
      throw Error(ErrorCode::invalid_argument, "corpus.make_batch",
                  fmt::format("indices: expected 0 <= index < {}, got {}", examples.size(), index));
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
    throw Error(ErrorCode::invalid_argument, "corpus.make_epoch", fmt::format("tokens: expected 1 or more, got {}", tokens));
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
