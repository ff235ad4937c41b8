// Reads records and compares medians.
#include "cli/bench_compare.hpp"

#include <everglow/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

namespace everglow::cli {
namespace {

struct Timed {
  double median = 0, p10 = 0, p90 = 0;
};

struct Records {
  std::vector<std::string> order;  // of the keys, as in the file
  std::map<std::string, Timed> rows;
};

/// Case, direction and row; runs with other threads are other rows.
std::string key_of(const nlohmann::json& r) {
  return fmt::format("{}\n{:<16} {:<26}{}", r.at("case").get<std::string>(), r.at("direction").get<std::string>(),
                     r.at("kernel").get<std::string>(), fmt::format(" {} thr", r.at("threads").get<int>()));
}

Records read(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::io, "bench.compare", fmt::format("{}: {}", file, std::strerror(errno)));
  Records out;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    try {
      const nlohmann::json r = nlohmann::json::parse(line);
      const Timed timed{r.at("median_us").get<double>(), r.at("p10_us").get<double>(), r.at("p90_us").get<double>()};
      if (!(timed.median > 0))
        throw Error(ErrorCode::io, "bench.compare", fmt::format("{}:{}: expected a time above 0", file, number));
      const std::string key = key_of(r);
      if (out.rows.emplace(key, timed).second) out.order.push_back(key);
    } catch (const nlohmann::json::exception& error) {
      throw Error(ErrorCode::io, "bench.compare", fmt::format("{}:{}: expected a record, got: {}", file, number, error.what()));
    }
  }
  if (in.bad()) throw Error(ErrorCode::io, "bench.compare", fmt::format("{}: {}", file, std::strerror(errno)));
  return out;
}

}  // namespace

int compare_records(const std::string& before, const std::string& after, double threshold) {
  const Records a = read(before), b = read(after);
  std::string last_case;
  int common = 0, slower = 0;
  for (const std::string& key : a.order) {
    const auto found = b.rows.find(key);
    if (found == b.rows.end()) continue;
    ++common;
    const Timed &was = a.rows.at(key), &is = found->second;
    // Slower for certain: by more than the threshold, and even its quick runs are slower than the slow ones were.
    const bool fault = is.median > was.median * (1 + threshold / 100) && is.p10 > was.p90;
    slower += fault ? 1 : 0;
    const std::string line = key.substr(0, key.find('\n'));
    if (line != last_case) fmt::print("{}{}\n", last_case.empty() ? "" : "\n", line);
    last_case = line;
    fmt::print("  {} {:>11.1f} us {:>11.1f} us {:>7.2f} x{}\n", key.substr(line.size() + 1), was.median, is.median,
               was.median / is.median, fault ? "  slower" : "");
  }
  if (common == 0)
    throw Error(ErrorCode::invalid_argument, "bench.compare",
                fmt::format("expected rows in common, {} and {} have none", before, after));
  fmt::print("\n{} rows in both, {} slower by more than {} %\n", common, slower, threshold);
  return slower > 0 ? 1 : 0;
}

}  // namespace everglow::cli
