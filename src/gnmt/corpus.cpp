// Parallel text: reading with checks that name the line, filtering by words, and its pieces.
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

}  // namespace everglow::gnmt
