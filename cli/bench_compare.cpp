// Compares medians of two files of records.
#include "cli/bench_compare.hpp"

#include "cli/bench_records.hpp"

#include <everglow/error.hpp>

#include <fmt/format.h>

#include <map>
#include <vector>

namespace everglow::cli {
namespace {

struct Records {
  std::vector<std::string> order;  // of the keys, as in the file
  std::map<std::string, BenchRecord> rows;
};

/// Case, direction and row; runs with other threads are other rows.
std::string key_of(const BenchRecord& r) {
  return fmt::format("{}\n{:<16} {:<26}{}", r.line, r.direction, r.kernel, fmt::format(" {} thr", r.threads));
}

Records read(const std::string& file) {
  Records out;
  for (const BenchRecord& record : read_records(file, "bench.compare")) {
    const std::string key = key_of(record);
    if (out.rows.emplace(key, record).second) out.order.push_back(key);
  }
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
    const BenchRecord &was = a.rows.at(key), &is = found->second;
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
