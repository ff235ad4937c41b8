// The picture of attention: shades of one character cell, as wide as the label of its column.
#include "cli/picture.hpp"

#include <algorithm>
#include <string_view>

namespace everglow::cli {
namespace {

/// The characters of UTF-8 text; each takes one column (pieces of European text have no wide characters).
std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= text.size(); ++i) {
    const bool inside = i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    if (inside) continue;
    out.push_back(text.substr(begin, i - begin));
    begin = i;
  }
  return out;
}

std::size_t width_of(std::string_view text) { return characters(text).size(); }

std::string_view shade(double weight) {
  if (weight >= 0.7) return "█";
  if (weight >= 0.4) return "▓";
  if (weight >= 0.2) return "▒";
  if (weight >= 0.05) return "░";
  return "·";
}

std::string repeat(std::string_view what, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += what;
  return out;
}

/// Labels of the columns in one line.
std::string across(std::span<const std::string> labels, std::span<const std::size_t> widths, std::size_t margin) {
  std::string out(margin, ' ');
  for (std::size_t s = 0; s < labels.size(); ++s) out.append(" ").append(labels[s]).append(widths[s] - width_of(labels[s]), ' ');
  return out.append("\n");
}

/// Labels of the columns written downwards, their ends on one line.
std::string downwards(std::span<const std::string> labels, std::size_t margin) {
  std::size_t height = 0;
  for (const std::string& label : labels) height = std::max(height, width_of(label));
  std::string out;
  for (std::size_t line = 0; line < height; ++line) {
    out += std::string(margin, ' ');
    for (const std::string& label : labels) {
      const std::vector<std::string_view> letters = characters(label);
      const std::size_t skip = height - letters.size();
      out += ' ';
      out += line < skip ? std::string_view(" ") : letters[line - skip];
      out += ' ';
    }
    out += '\n';
  }
  return out;
}

}  // namespace

std::string attention_picture(const std::vector<std::vector<double>>& weights, std::span<const std::string> source,
                              std::span<const std::string> target, std::size_t columns) {
  std::size_t margin = 0;
  for (const std::string& label : target) margin = std::max(margin, width_of(label));
  std::vector<std::size_t> widths;
  std::size_t total = margin;
  for (const std::string& label : source) {
    widths.push_back(std::max<std::size_t>(2, width_of(label)));
    total += 1 + widths.back();
  }
  const bool fits = total <= columns;
  if (!fits) std::fill(widths.begin(), widths.end(), 2);
  std::string out = fits ? across(source, widths, margin) : downwards(source, margin);
  for (std::size_t t = 0; t < std::min(weights.size(), target.size()); ++t) {
    out.append(margin - width_of(target[t]), ' ').append(target[t]);
    for (std::size_t s = 0; s < std::min(weights[t].size(), widths.size()); ++s)
      out.append(" ").append(repeat(shade(weights[t][s]), widths[s]));
    out += '\n';
  }
  return out.append(margin, ' ').append(" (█ at least 0.7, ▓ 0.4, ▒ 0.2, ░ 0.05, · less)\n");
}

}  // namespace everglow::cli
