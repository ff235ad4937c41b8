// The built-in corpus: English number words and their French translation for 0 ... 999,999, made by rule.
// English: "one hundred and twenty-three"; French in the traditional orthography: "vingt et un", "quatre-vingts", "deux cents",
// "deux cent mille".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace everglow::gnmt {

inline constexpr std::int64_t number_limit = 1'000'000;

std::string english(std::int64_t n);  ///< 0 <= n < number_limit, else throws Error(invalid_argument)
std::string french(std::int64_t n);

enum class Split : std::uint8_t { train, valid, test };

/// Which part a number or a line belongs to: by hash, 1 % valid and 1 % test, so that no test item is ever in training.
Split split_of(std::uint64_t n);
Split split_of(std::string_view line);

}  // namespace everglow::gnmt
