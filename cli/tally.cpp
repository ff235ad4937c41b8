// Writes tallies.
#include "cli/tally.hpp"

#include "cli/layers.hpp"
#include "cli/wrap.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace everglow::cli {
namespace {

std::vector<std::string> in_order(const std::set<std::string, std::less<>>& found) {
  std::vector<std::string> out;
  for (const char* dtype : dtype_names)
    if (found.contains(dtype)) out.emplace_back(dtype);
  return out;
}

std::string verdict(const Tally& tally) {
  if (!tally.faults.empty()) return fmt::format("{} faults", tally.faults.size());
  return tally.cases > 0 ? "agrees" : "no case";
}

}  // namespace

bool passed(const std::vector<Tally>& tallies) {
  return std::all_of(tallies.begin(), tallies.end(), [](const Tally& t) { return t.faults.empty(); });
}

std::string tally_table(const std::vector<Tally>& tallies) {
  constexpr std::string_view line = "{:<10} {:<26} {:<9} {:<17} {:>6} {:>12}  {}\n";
  std::string out = fmt::format(line, "layer", "row", "isa", "dtypes", "cases", "worst share", "verdict");
  for (const Tally& t : tallies)
    out += fmt::format(line, t.layer, t.row, t.isa.empty() ? "-" : t.isa, fmt::format("{}", fmt::join(in_order(t.dtypes), " ")),
                       t.cases, t.cases > 0 ? fmt::format("{:.3f}", t.share) : "", verdict(t));
  return out;
}

std::string fault_list(const std::vector<Tally>& tallies) {
  constexpr std::size_t most = 5;
  std::string out;
  for (const Tally& t : tallies) {
    if (t.faults.empty()) continue;
    out += fmt::format("\n{}{}{}:\n", t.row, t.isa.empty() ? "" : " on ", t.isa);
    for (std::size_t i = 0; i < std::min(most, t.faults.size()); ++i) {
      out += "  ";
      wrap(out, t.faults[i].line, 4);
      out += "    ";
      wrap(out, fmt::format("{}: {}", t.faults[i].where, t.faults[i].what), 6);
    }
    if (t.faults.size() > most) out += fmt::format("  and {} more\n", t.faults.size() - most);
  }
  return out;
}

nlohmann::json rows_json(const std::vector<Tally>& tallies) {
  nlohmann::json out = nlohmann::json::array();
  for (const Tally& t : tallies) {
    nlohmann::json faults = nlohmann::json::array();
    for (const Fault& f : t.faults) faults.push_back({{"case", f.line}, {"where", f.where}, {"fault", f.what}});
    out.push_back({{"layer", t.layer},
                   {"row", t.row},
                   {"isa", t.isa.empty() ? nlohmann::json() : nlohmann::json(t.isa)},
                   {"dtypes", in_order(t.dtypes)},
                   {"cases", t.cases},
                   {"worst_share", t.share},
                   {"verdict", t.faults.empty() ? (t.cases > 0 ? "agrees" : "no case") : "faults"},
                   {"faults", std::move(faults)}});
  }
  return out;
}

}  // namespace everglow::cli
