// Number words: tables written by hand, properties over the whole corpus, and a hash of the whole corpus as an independent source
// (tests/oracles/number_words.py) writes it.
#include <everglow/error.hpp>
#include <everglow/gnmt/numbers.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace everglow::gnmt {
namespace {

using Word = std::pair<std::int64_t, std::string_view>;

constexpr Word english_words[] = {{0, "zero"},
                                  {1, "one"},
                                  {2, "two"},
                                  {3, "three"},
                                  {4, "four"},
                                  {5, "five"},
                                  {6, "six"},
                                  {7, "seven"},
                                  {8, "eight"},
                                  {9, "nine"},
                                  {10, "ten"},
                                  {11, "eleven"},
                                  {12, "twelve"},
                                  {13, "thirteen"},
                                  {14, "fourteen"},
                                  {15, "fifteen"},
                                  {16, "sixteen"},
                                  {17, "seventeen"},
                                  {18, "eighteen"},
                                  {19, "nineteen"},
                                  {20, "twenty"},
                                  {21, "twenty-one"},
                                  {22, "twenty-two"},
                                  {30, "thirty"},
                                  {31, "thirty-one"},
                                  {40, "forty"},
                                  {44, "forty-four"},
                                  {50, "fifty"},
                                  {58, "fifty-eight"},
                                  {60, "sixty"},
                                  {70, "seventy"},
                                  {71, "seventy-one"},
                                  {80, "eighty"},
                                  {81, "eighty-one"},
                                  {90, "ninety"},
                                  {99, "ninety-nine"},
                                  {100, "one hundred"},
                                  {101, "one hundred and one"},
                                  {110, "one hundred and ten"},
                                  {111, "one hundred and eleven"},
                                  {123, "one hundred and twenty-three"},
                                  {180, "one hundred and eighty"},
                                  {200, "two hundred"},
                                  {201, "two hundred and one"},
                                  {280, "two hundred and eighty"},
                                  {345, "three hundred and forty-five"},
                                  {500, "five hundred"},
                                  {999, "nine hundred and ninety-nine"},
                                  {1000, "one thousand"},
                                  {1001, "one thousand and one"},
                                  {1010, "one thousand and ten"},
                                  {1099, "one thousand and ninety-nine"},
                                  {1100, "one thousand one hundred"},
                                  {1101, "one thousand one hundred and one"},
                                  {1984, "one thousand nine hundred and eighty-four"},
                                  {2000, "two thousand"},
                                  {2013, "two thousand and thirteen"},
                                  {10'000, "ten thousand"},
                                  {12'345, "twelve thousand three hundred and forty-five"},
                                  {20'020, "twenty thousand and twenty"},
                                  {80'000, "eighty thousand"},
                                  {99'999, "ninety-nine thousand nine hundred and ninety-nine"},
                                  {100'000, "one hundred thousand"},
                                  {100'001, "one hundred thousand and one"},
                                  {101'101, "one hundred and one thousand one hundred and one"},
                                  {200'000, "two hundred thousand"},
                                  {280'080, "two hundred and eighty thousand and eighty"},
                                  {654'321, "six hundred and fifty-four thousand three hundred and twenty-one"},
                                  {999'999, "nine hundred and ninety-nine thousand nine hundred and ninety-nine"}};

constexpr Word french_words[] = {{0, "zéro"},
                                 {1, "un"},
                                 {2, "deux"},
                                 {3, "trois"},
                                 {4, "quatre"},
                                 {5, "cinq"},
                                 {6, "six"},
                                 {7, "sept"},
                                 {8, "huit"},
                                 {9, "neuf"},
                                 {10, "dix"},
                                 {11, "onze"},
                                 {12, "douze"},
                                 {13, "treize"},
                                 {14, "quatorze"},
                                 {15, "quinze"},
                                 {16, "seize"},
                                 {17, "dix-sept"},
                                 {18, "dix-huit"},
                                 {19, "dix-neuf"},
                                 {20, "vingt"},
                                 {21, "vingt et un"},
                                 {22, "vingt-deux"},
                                 {29, "vingt-neuf"},
                                 {30, "trente"},
                                 {31, "trente et un"},
                                 {40, "quarante"},
                                 {41, "quarante et un"},
                                 {50, "cinquante"},
                                 {51, "cinquante et un"},
                                 {60, "soixante"},
                                 {61, "soixante et un"},
                                 {69, "soixante-neuf"},
                                 {70, "soixante-dix"},
                                 {71, "soixante et onze"},
                                 {72, "soixante-douze"},
                                 {77, "soixante-dix-sept"},
                                 {79, "soixante-dix-neuf"},
                                 {80, "quatre-vingts"},
                                 {81, "quatre-vingt-un"},
                                 {82, "quatre-vingt-deux"},
                                 {90, "quatre-vingt-dix"},
                                 {91, "quatre-vingt-onze"},
                                 {92, "quatre-vingt-douze"},
                                 {99, "quatre-vingt-dix-neuf"},
                                 {100, "cent"},
                                 {101, "cent un"},
                                 {111, "cent onze"},
                                 {121, "cent vingt et un"},
                                 {171, "cent soixante et onze"},
                                 {180, "cent quatre-vingts"},
                                 {181, "cent quatre-vingt-un"},
                                 {200, "deux cents"},
                                 {201, "deux cent un"},
                                 {280, "deux cent quatre-vingts"},
                                 {300, "trois cents"},
                                 {999, "neuf cent quatre-vingt-dix-neuf"},
                                 {1000, "mille"},
                                 {1001, "mille un"},
                                 {1080, "mille quatre-vingts"},
                                 {1100, "mille cent"},
                                 {1200, "mille deux cents"},
                                 {1789, "mille sept cent quatre-vingt-neuf"},
                                 {2000, "deux mille"},
                                 {2001, "deux mille un"},
                                 {21'000, "vingt et un mille"},
                                 {71'071, "soixante et onze mille soixante et onze"},
                                 {80'000, "quatre-vingt mille"},
                                 {80'080, "quatre-vingt mille quatre-vingts"},
                                 {81'000, "quatre-vingt-un mille"},
                                 {100'000, "cent mille"},
                                 {101'000, "cent un mille"},
                                 {180'000, "cent quatre-vingt mille"},
                                 {200'000, "deux cent mille"},
                                 {200'200, "deux cent mille deux cents"},
                                 {280'000, "deux cent quatre-vingt mille"},
                                 {300'001, "trois cent mille un"},
                                 {999'999, "neuf cent quatre-vingt-dix-neuf mille neuf cent quatre-vingt-dix-neuf"}};

TEST(numbers, english_table_sanitize) {
  for (const auto& [n, word] : english_words) EXPECT_EQ(english(n), word);
}

TEST(numbers, french_table_sanitize) {
  for (const auto& [n, word] : french_words) EXPECT_EQ(french(n), word);
}

TEST(numbers, the_whole_corpus_equals_the_oracle) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::int64_t n = 0; n < number_limit; ++n)
    for (const char c : english(n) + '\t' + french(n) + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  EXPECT_EQ(hash, 0x1c0d3c2279ec61d1U);
}

TEST(numbers, every_number_has_its_own_words) {
  for (std::string (*words)(std::int64_t) : {english, french}) {
    std::vector<std::size_t> hashes;  // equal words have equal hashes; two different words meet with a chance of one in 10^7
    for (std::int64_t n = 0; n < number_limit; ++n) hashes.push_back(std::hash<std::string>()(words(n)));
    std::sort(hashes.begin(), hashes.end());
    EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
  }
}

TEST(numbers, outside_of_the_corpus_is_refused_sanitize) {
  for (const std::int64_t n : {std::int64_t{-1}, number_limit, INT64_MIN, INT64_MAX}) {
    EXPECT_THROW(english(n), Error);
    EXPECT_THROW(french(n), Error);
  }
  try {
    french(number_limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "[numbers.french] n: expected 0 <= n < 1000000, got 1000000");
  }
}

// The hash is as good as random: of a million draws with probability 1/100, 10,000 are expected with a standard deviation of 99.5;
// five of those are a bound that a sound hash passes but for one chance in a million.
TEST(numbers, one_per_cent_is_valid_and_one_per_cent_is_test) {
  std::array<int, 3> of_numbers{}, of_lines{};
  for (std::int64_t n = 0; n < number_limit; ++n) {
    ++of_numbers[static_cast<int>(split_of(static_cast<std::uint64_t>(n)))];
    ++of_lines[static_cast<int>(split_of(std::to_string(n)))];
  }
  for (const auto& counts : {of_numbers, of_lines}) {
    EXPECT_NEAR(counts[static_cast<int>(Split::valid)], 10'000, 498);
    EXPECT_NEAR(counts[static_cast<int>(Split::test)], 10'000, 498);
    EXPECT_EQ(counts[0] + counts[1] + counts[2], number_limit);
  }
}

// The parts are a promise: a model trained yesterday must not find today's test numbers in its training data.
TEST(numbers, the_split_never_changes_sanitize) {
  std::string first_of_valid, first_of_test;
  for (std::uint64_t n = 0; n < 600; ++n) {
    if (split_of(n) == Split::valid) first_of_valid += std::to_string(n) + ' ';
    if (split_of(n) == Split::test) first_of_test += std::to_string(n) + ' ';
  }
  EXPECT_EQ(first_of_valid, "29 75 102 186 220 241 333 ");
  EXPECT_EQ(first_of_test, "32 86 96 242 380 392 448 452 510 ");
}

}  // namespace
}  // namespace everglow::gnmt
