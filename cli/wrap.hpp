// Text in lines of at most 100 columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace everglow::cli {

inline constexpr std::size_t page_width = 100;

/// Adds the words of `text` and a line end; the first line goes on where `out` ends, the others begin at the column `indent`.
void wrap(std::string& out, std::string_view text, std::size_t indent);

}  // namespace everglow::cli
