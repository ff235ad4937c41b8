// Reads case lines.
#include "cases/case.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>

namespace everglow::cases {

extern const char* const embedded_lists[];
extern const int embedded_list_count;

std::string Case::text(std::string_view key, std::string_view otherwise) const {
  const auto it = fields.find(key);
  return it == fields.end() ? std::string(otherwise) : it->second;
}

namespace {

template <class T>
T parsed(const Case& c, std::string_view key, T otherwise) {
  const auto it = c.fields.find(key);
  if (it == c.fields.end()) return otherwise;
  T value{};
  const char* end = it->second.data() + it->second.size();
  const auto result = std::from_chars(it->second.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end)
    throw std::invalid_argument("case: " + std::string(key) + ": expected a number, got \"" + it->second + "\"");
  return value;
}

}  // namespace

std::int64_t Case::integer(std::string_view key, std::int64_t otherwise) const { return parsed(*this, key, otherwise); }
double Case::number(std::string_view key, double otherwise) const { return parsed(*this, key, otherwise); }
bool Case::flag(std::string_view key, bool otherwise) const { return integer(key, otherwise ? 1 : 0) != 0; }

Case parse(std::string_view line) {
  Case out;
  out.line = line;
  const auto hash = line.find('#');
  std::istringstream fields{std::string(line.substr(0, hash))};
  if (!(fields >> out.layer)) throw std::invalid_argument("case: expected a layer, got an empty line");
  for (std::string field; fields >> field;) {
    const auto equal = field.find('=');
    if (equal == std::string::npos || equal == 0) throw std::invalid_argument("case: expected key=value, got \"" + field + "\"");
    if (!out.fields.emplace(field.substr(0, equal), field.substr(equal + 1)).second)
      throw std::invalid_argument("case: expected each key once, got \"" + field + "\" again");
  }
  if (hash != std::string_view::npos) {
    std::istringstream tags{std::string(line.substr(hash + 1))};
    for (std::string tag; tags >> tag;) out.tags.insert(tag);
  }
  return out;
}

namespace {

std::vector<Case> all() {
  std::vector<Case> out;
  for (int i = 0; i < embedded_list_count; ++i) {
    std::istringstream lines{embedded_lists[i]};
    for (std::string line; std::getline(lines, line);) {
      const auto start = line.find_first_not_of(" \t\r");
      if (start == std::string::npos || line[start] == '#') continue;
      out.push_back(parse(line));
    }
  }
  return out;
}

}  // namespace

std::vector<Case> tested(std::string_view layer) {
  const auto only_timed = [](const Case& c) {
    const auto of_benchmarks = [](const std::string& tag) {
      return tag == "bench" || tag == "headline" || tag == "users" || tag == "card" || tag == "cpu" || tag == "cuda";
    };
    return (c.tagged("bench") || c.tagged("headline") || c.tagged("users") || c.tagged("card")) &&
           std::all_of(c.tags.begin(), c.tags.end(), of_benchmarks);
  };
  std::vector<Case> out = all();
  std::erase_if(out, [&](const Case& c) { return c.layer != layer || only_timed(c); });
  return out;
}

std::vector<Case> timed(std::string_view tag, DeviceKind device) {
  const bool on_cpu = device == DeviceKind::cpu;
  std::vector<Case> out = tagged(tag);
  std::erase_if(out, [&](const Case& c) { return c.tagged(on_cpu ? "cuda" : "cpu") && !c.tagged(on_cpu ? "cpu" : "cuda"); });
  return out;
}

std::vector<Case> tagged(std::string_view tag) {
  std::vector<Case> out = all();
  std::erase_if(out, [&](const Case& c) { return !c.tagged(tag); });
  return out;
}

}  // namespace everglow::cases
