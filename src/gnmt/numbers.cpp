// Number words by rule. English joins tens and units with a hyphen and puts "and" before the last two digits; French follows the
// traditional orthography, where hyphens stand only below one hundred and never around "et", and where "cent" and "quatre-vingt"
// take an s only at the very end of the number.
#include <everglow/error.hpp>
#include <everglow/gnmt/numbers.hpp>

#include "gnmt/hash.hpp"

#include <array>

namespace everglow::gnmt {

namespace {

void require_in_corpus(std::string_view where, std::int64_t n) {
  if (n < 0 || n >= number_limit)
    throw Error(ErrorCode::invalid_argument, where,
                "n: expected 0 <= n < " + std::to_string(number_limit) + ", got " + std::to_string(n));
}

constexpr std::array<std::string_view, 20> english_small{
    "zero", "one",    "two",    "three",    "four",     "five",    "six",     "seven",     "eight",    "nine",
    "ten",  "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> english_tens{"",      "",      "twenty",  "thirty", "forty",
                                                        "fifty", "sixty", "seventy", "eighty", "ninety"};

void append_english_below_100(std::string& out, int n) {
  if (n < 20) {
    out += english_small[n];
    return;
  }
  out += english_tens[n / 10];
  if (n % 10) (out += '-') += english_small[n % 10];
}

void append_english_below_1000(std::string& out, int n) {
  if (n >= 100) {
    (out += english_small[n / 100]) += " hundred";
    if (n % 100) out += " and ";
  }
  if (n % 100 || n == 0) append_english_below_100(out, n % 100);
}

constexpr std::array<std::string_view, 20> french_small{"zéro",     "un",     "deux",  "trois",    "quatre",   "cinq",    "six",
                                                        "sept",     "huit",   "neuf",  "dix",      "onze",     "douze",   "treize",
                                                        "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf"};
constexpr std::array<std::string_view, 10> french_tens{"",          "",         "vingt",    "trente",       "quarante",
                                                       "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt"};

/// `last`: nothing follows, so "quatre-vingts" takes its s.
void append_french_below_100(std::string& out, int n, bool last) {
  if (n < 20) {
    out += french_small[n];
    return;
  }
  const int ten = n / 10;
  const int rest = ten == 7 || ten == 9 ? n % 10 + 10 : n % 10;  // 70 ... 79 and 90 ... 99 count on from sixty and eighty
  out += french_tens[ten];
  if (n == 80 && last) out += 's';
  if (rest == 0) return;
  const bool joined_by_et = (rest == 1 || rest == 11) && ten < 8;
  (out += joined_by_et ? " et " : "-") += french_small[rest];
}

void append_french_below_1000(std::string& out, int n, bool last) {
  const int hundreds = n / 100, rest = n % 100;
  if (hundreds > 1) (out += french_small[hundreds]) += ' ';
  if (hundreds > 0) out += "cent";
  if (hundreds > 1 && rest == 0 && last) out += 's';
  if (hundreds > 0 && rest > 0) out += ' ';
  if (rest > 0 || n == 0) append_french_below_100(out, rest, last);
}

}  // namespace

std::string english(std::int64_t n) {
  require_in_corpus("numbers.english", n);
  const int thousands = static_cast<int>(n / 1000), rest = static_cast<int>(n % 1000);
  std::string out;
  if (thousands > 0) {
    append_english_below_1000(out, thousands);
    out += " thousand";
    if (rest == 0) return out;
    out += rest < 100 ? " and " : " ";
  }
  append_english_below_1000(out, rest);
  return out;
}

std::string french(std::int64_t n) {
  require_in_corpus("numbers.french", n);
  const int thousands = static_cast<int>(n / 1000), rest = static_cast<int>(n % 1000);
  std::string out;
  if (thousands > 0) {
    if (thousands > 1) {
      append_french_below_1000(out, thousands, false);
      out += ' ';
    }
    out += "mille";
    if (rest == 0) return out;
    out += ' ';
  }
  append_french_below_1000(out, rest, true);
  return out;
}

Split split_of(std::uint64_t n) {
  switch (mixed(n) % 100) {
    case 0:
      return Split::valid;
    case 1:
      return Split::test;
    default:
      return Split::train;
  }
}

Split split_of(std::string_view line) { return split_of(fnv1a(line)); }

}  // namespace everglow::gnmt
