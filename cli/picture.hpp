// Draws attention as text: one row for each piece of the translation, one column for each piece of the source, shaded blocks
// between.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace everglow::cli {

/// weights[t][s] in 0 ... 1. Source labels stand across where they fit in `columns`, else downwards. Needs no colours.
std::string attention_picture(const std::vector<std::vector<double>>& weights, std::span<const std::string> source,
                              std::span<const std::string> target, std::size_t columns = 100);

}  // namespace everglow::cli
