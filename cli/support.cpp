// Counts answers and writes them as tables. A dtype has a star where a row takes only some of the cases with the option, and stands
// in parentheses where no case of the list proves it.
#include "cli/support.hpp"

#include "cli/layers.hpp"
#include "cli/wrap.hpp"

#include <everglow/plan.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace everglow::cli {
namespace {

constexpr std::array sizes{"batch", "inputs",   "outputs",    "rows",  "columns", "steps",   "hidden",     "queries", "keys",
                           "heads", "head_dim", "vocabulary", "width", "indices", "classes", "parameters", "tensors"};

bool is_number(std::string_view text) { return text.find_first_not_of("0123456789.") == std::string_view::npos; }

}  // namespace

std::vector<std::string> options_of(const cases::Case& c) {
  std::vector<std::string> out;
  bool empty = false;
  for (const auto& [key, value] : c.fields) {
    if (std::find(sizes.begin(), sizes.end(), key) != sizes.end())
      empty = empty || value == "0";
    else if (key != "dtype")
      out.push_back(is_number(value) && value != "0" ? key : fmt::format("{}={}", key, value));
  }
  if (out.empty()) out.emplace_back("plain");
  if (empty) out.emplace_back("size 0");
  return out;
}

cases::Case at_most(cases::Case c, std::int64_t most) {
  for (const char* size : sizes)
    if (c.integer(size, 0) > most) c.fields[size] = std::to_string(most);
  return c;
}

void Support::note(const cases::Case& c, std::string_view dtype, std::string_view row, Answer answer) {
  Options& options = layers_[c.layer];
  for (const std::string& option : options_of(c)) {
    Count& count = options[option][std::string(row)][std::string(dtype)];
    ++count.asked;
    count.accepted += answer == Answer::accepted || answer == Answer::proved ? 1 : 0;
    count.proved += answer == Answer::proved ? 1 : 0;
  }
}

std::string Support::cell(const Options& options, const std::string& option, std::string_view row) {
  const Rows& rows = options.at(option);
  const auto found = rows.find(row);
  if (found == rows.end()) return {};
  std::string out;
  for (const char* dtype : dtype_names) {
    const auto count = found->second.find(dtype);
    if (count == found->second.end() || count->second.accepted == 0) continue;
    const std::string served = fmt::format("{}{}", dtype, count->second.accepted < count->second.asked ? "*" : "");
    if (!out.empty()) out += ' ';
    out += count->second.proved > 0 ? served : "(" + served + ")";
  }
  return out;
}

std::string Support::text() const {
  std::string out;
  for (const char* layer : layers) {
    const auto options = layers_.find(layer);
    if (options == layers_.end()) continue;
    out += fmt::format("{}\n", layer);
    for (const auto& [option, rows] : options->second) {
      std::string list;
      for (const std::string& row : kernels(layer, DeviceKind::cpu)) {
        const std::string served = cell(options->second, option, row);
        if (!served.empty()) list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", row, served);
      }
      out += fmt::format("  {:<30} ", option);
      wrap(out, list.empty() ? "none" : list, 33);
    }
  }
  return out;
}

std::string Support::markdown() const {
  std::string out;
  for (const char* layer : layers) {
    const auto options = layers_.find(layer);
    if (options == layers_.end()) continue;
    const std::vector<std::string> rows = kernels(layer, DeviceKind::cpu);
    out += fmt::format("\n## {}\n\n| option |", layer);
    for (const std::string& row : rows) out += fmt::format(" `{}` |", row);
    out += "\n|---|";
    for (std::size_t i = 0; i < rows.size(); ++i) out += "---|";
    out += '\n';
    for (const auto& option : options->second) {
      out += fmt::format("| {} |", option.first);
      for (const std::string& row : rows) out += fmt::format(" {} |", cell(options->second, option.first, row));
      out += '\n';
    }
  }
  return out;
}

nlohmann::json Support::json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [layer, options] : layers_)
    for (const auto& [option, rows] : options)
      for (const auto& [row, counts] : rows) {
        nlohmann::json served = nlohmann::json::array();
        for (const char* dtype : dtype_names)
          if (const auto count = counts.find(dtype); count != counts.end() && count->second.accepted > 0) served.push_back(dtype);
        out.push_back({{"layer", layer}, {"option", option}, {"row", row}, {"dtypes", std::move(served)}});
      }
  return out;
}

}  // namespace everglow::cli
