// Explanations for people: aligned tables of at most 100 columns.
#pragma once

#include <everglow/everglow.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace everglow::cli {

inline constexpr std::size_t table_width = 100;

/// Rows of cells under a head; numbers stand to the right, the first columns named in `left` to the left.
std::string aligned_table(const std::vector<std::vector<std::string>>& rows, std::size_t left = 1);
/// `text` in lines of at most 100 columns, each but the first behind `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent);
/// "12.3 us", "4.56 ms", "7.89 s"; "1.5 KiB", "8.0 MiB".
std::string time_text(double us);
std::string bytes_text(double bytes);

/// The whole explanation; `title` is its first line.
std::string explanation_text(const std::string& title, const Explanation& explanation);
/// "1. outputs 33708 -> 33712: 2.84x ...", one paragraph each.
std::string advice_text(const std::vector<ExplanationAdvice>& advice);

}  // namespace everglow::cli
