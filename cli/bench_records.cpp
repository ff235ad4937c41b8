// Reads records.
#include "cli/bench_records.hpp"

#include <everglow/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace everglow::cli {
namespace {

using nlohmann::json;

/// Of a field that may be missing or null.
double number_or_0(const json& record, const char* key) {
  const auto field = record.find(key);
  return field == record.end() || field->is_null() ? 0 : field->get<double>();
}

BenchRecord record_of(const json& r) {
  BenchRecord out{.op = r.at("op"), .line = r.at("case"), .direction = r.at("direction"), .kernel = r.at("kernel")};
  out.chosen = r.value("chosen", false), out.dtype = r.at("dtype"), out.device = r.at("device"), out.threads = r.at("threads");
  out.median = r.at("median_us"), out.p10 = r.at("p10"), out.p90 = r.at("p90");
  out.flops = number_or_0(r, "flops"), out.bytes = number_or_0(r, "bytes");
  out.floor = number_or_0(r, "floor_us"), out.predicted = number_or_0(r, "predicted_us");
  out.peak_gflops = number_or_0(r, "peak_gflops"), out.bandwidth_gbs = number_or_0(r, "bandwidth_gbs");
  out.steps = number_or_0(r, "steps"), out.tokens = number_or_0(r, "tokens"), out.pairs = number_or_0(r, "pairs");
  return out;
}

}  // namespace

std::vector<BenchRecord> read_records(const std::string& file, const std::string& who) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::io, who, fmt::format("{}: {}", file, std::strerror(errno)));
  std::vector<BenchRecord> out;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    try {
      out.push_back(record_of(json::parse(line)));
    } catch (const json::exception&) {
      throw Error(ErrorCode::io, who,
                  fmt::format("{}:{}: expected a record, a line of JSON as everglow bench --out writes it", file, number));
    }
    if (!(out.back().median > 0)) throw Error(ErrorCode::io, who, fmt::format("{}:{}: expected a time above 0", file, number));
  }
  if (in.bad()) throw Error(ErrorCode::io, who, fmt::format("{}: {}", file, std::strerror(errno)));
  return out;
}

}  // namespace everglow::cli
