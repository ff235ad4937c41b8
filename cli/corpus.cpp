// everglow corpus: writes the built-in corpus of number words as TSV.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"

#include <everglow/gnmt/numbers.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace everglow::cli {
namespace {

struct Range {
  std::int64_t begin = 0, end = gnmt::number_limit;
};

std::optional<Range> parse_range(std::string_view text) {
  Range range;
  const char* const stop = text.data() + text.size();
  const auto [colon, first_error] = std::from_chars(text.data(), stop, range.begin);
  if (first_error != std::errc() || colon == stop || *colon != ':') return {};
  const auto [rest, second_error] = std::from_chars(colon + 1, stop, range.end);
  if (second_error != std::errc() || rest != stop) return {};
  if (range.begin < 0 || range.begin > range.end || range.end > gnmt::number_limit) return {};
  return range;
}

std::string check_range(std::string& text) {
  if (parse_range(text)) return {};
  return fmt::format("expected A:B with 0 <= A <= B <= {}, got \"{}\"; for example 0:1000", gnmt::number_limit, text);
}

std::optional<gnmt::Split> parse_split(std::string_view text) {
  if (text == "train") return gnmt::Split::train;
  if (text == "valid") return gnmt::Split::valid;
  if (text == "test") return gnmt::Split::test;
  return {};
}

void write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    throw std::system_error(errno, std::generic_category(), "standard output");
}

void write_corpus(const Range& range, std::optional<gnmt::Split> split) {
  constexpr std::size_t block = 1 << 16;
  std::string text;
  for (std::int64_t n = range.begin; n < range.end; ++n) {
    if (split && gnmt::split_of(static_cast<std::uint64_t>(n)) != *split) continue;
    (((text += gnmt::english(n)) += '\t') += gnmt::french(n)) += '\n';
    if (text.size() < block) continue;
    write(text);
    text.clear();
  }
  write(text);
}

}  // namespace

void add_corpus(CLI::App& tool, int& status) {
  struct Arguments {
    std::string split, range;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& app = *tool.add_subcommand("corpus", "Write the built-in corpus, English and French number words, as TSV");
  app.footer("everglow corpus --split test --range 0:1000");
  app.add_option("--split", arguments->split, "Only this part: train, valid or test; without it all three, in order of the number")
      ->type_name("PART")
      ->check(one_of({"train", "valid", "test"}));
  app.add_option("--range", arguments->range, "Only the numbers A <= n < B within 0:1000000; without it all")
      ->type_name("A:B")
      ->check(CLI::Validator(check_range, ""));
  app.callback([arguments, &status] {
    write_corpus(parse_range(arguments->range).value_or(Range{}), parse_split(arguments->split));
    status = 0;
  });
}

}  // namespace everglow::cli
