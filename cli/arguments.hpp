// Checks of arguments whose message says which argument, what is allowed, and an example.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace everglow::cli {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

/// What a number may be, with an example for the message.
struct Allowed {
  double least = 0;
  double most = unlimited;
  std::string example;
  bool whole = false;
};

inline CLI::Validator allowed(Allowed range) {
  const std::string kind = range.whole ? "a whole number" : "a number";
  const std::string bounds =
      range.most == unlimited ? fmt::format("of at least {}", range.least) : fmt::format("from {} to {}", range.least, range.most);
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    const bool whole = !range.whole || text.find_first_not_of("0123456789", text.starts_with('-') ? 1 : 0) == std::string::npos;
    if (number && whole && value >= range.least && value <= range.most) return {};
    return fmt::format("expected {} {}, got \"{}\"; for example {}", kind, bounds, text, range.example);
  };
  return {[check](std::string& text) { return check(text); }, ""};
}

inline CLI::Validator whole(double least, std::string example, double most = unlimited) {
  return allowed({.least = least, .most = most, .example = std::move(example), .whole = true});
}
inline CLI::Validator number(double least, double most, std::string example) {
  return allowed({.least = least, .most = most, .example = std::move(example)});
}

/// A file to write, which an unset variable of a script is not.
inline CLI::Validator file_name() {
  return CLI::Validator(
      [](const std::string& value) { return value.empty() ? std::string("expected the name of a file, got an empty one") : ""; },
      "");
}

inline CLI::Validator one_of(std::vector<std::string> names) {
  const auto check = [names = std::move(names)](std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return {};
    return fmt::format("expected {}, got \"{}\"", fmt::join(names, " or "), text);
  };
  return {check, ""};
}

}  // namespace everglow::cli
