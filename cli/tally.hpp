// What `everglow check` has found of each row on each instruction set, as a table and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace everglow::cli {

struct Fault {
  std::string line;  // of the case
  std::string where;
  std::string what;
};

/// What one row has shown on one instruction set.
struct Tally {
  std::string layer, row;
  std::string isa;  // empty: the row has none of its own
  std::set<std::string, std::less<>> dtypes{};
  std::int64_t cases = 0;
  double share = 0;  // the largest error as a share of its bound
  std::vector<Fault> faults{};
};

/// No row has a fault. A row that no case reached has none.
bool passed(const std::vector<Tally>& tallies);
std::string tally_table(const std::vector<Tally>& tallies);
/// The first faults of each row; a broken kernel has hundreds.
std::string fault_list(const std::vector<Tally>& tallies);
nlohmann::json rows_json(const std::vector<Tally>& tallies);

}  // namespace everglow::cli
