// Writes records as JSON and as a table.
#include "bench/record.hpp"

#include "everglow_bench_commit.hpp"

#include <cstdio>
#include <ctime>
#include <fstream>

namespace everglow::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char code[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string padded(std::string text, int width) {
  const auto size = static_cast<int>(text.size());
  if (size < std::abs(width)) text.insert(width < 0 ? 0 : text.size(), static_cast<std::size_t>(std::abs(width) - size), ' ');
  return text;
}

/// Widths of the figures of a line.
constexpr int widths[] = {-11, -9, -9, -8, -9, -12};

std::string row_of(const Record& r, const std::vector<std::string>& figures) {
  std::string out = padded(r.direction, 17) + padded(r.kernel, 25);
  for (std::size_t i = 0; i < figures.size(); ++i) out += padded(figures[i], widths[i]);
  return out + "\n";
}

/// Three digits at least, and no more decimals than they need.
std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

}  // namespace

std::string json_line(const Record& r) {
  std::string samples;
  for (const double us : r.samples_us) samples += (samples.empty() ? "" : ",") + number(us);
  const bool referred = !r.ref_name.empty();
  std::string out = "{\"op\":" + quoted(r.op) + ",\"case\":" + quoted(r.line) + ",\"direction\":" + quoted(r.direction);
  out += ",\"kernel\":" + quoted(r.kernel) + ",\"dtype\":" + quoted(r.dtype) + ",\"device\":" + quoted(r.device);
  out += ",\"isa\":" + quoted(r.isa) + ",\"threads\":" + std::to_string(r.threads) + ",\"commit\":" + quoted(build_commit);
  out += std::string(",\"dirty\":") + (build_dirty ? "true" : "false") + ",\"date\":" + quoted(utc_now());
  out += ",\"warmup\":" + std::to_string(r.warmup) + ",\"samples_us\":[" + samples + "],\"median_us\":" + number(r.median_us);
  out += ",\"p10_us\":" + number(r.p10_us) + ",\"p90_us\":" + number(r.p90_us) + ",\"flops\":" + number(r.flops);
  out += ",\"bytes\":" + number(r.bytes);
  if (r.steps > 0) out += ",\"steps\":" + number(r.steps) + ",\"us_per_step\":" + number(r.median_us / r.steps);
  if (r.pairs > 0) {
    out += ",\"tokens\":" + number(r.tokens) + ",\"tokens_per_second\":" + number(r.tokens / r.median_us * 1e6);
    out += ",\"pairs\":" + number(r.pairs) + ",\"pairs_per_second\":" + number(r.pairs / r.median_us * 1e6);
  }
  out += ",\"ref\":";
  out += referred ? "{\"name\":" + quoted(r.ref_name) + ",\"median_us\":" + number(r.ref_us) + "}" : "null";
  return out + ",\"ratio\":" + (referred ? number(r.ratio()) : "null") + "}\n";
}

std::string table_head(const Record& first) {
  if (first.pairs > 0)
    return row_of({.direction = "direction", .kernel = "kernel"}, {"median us", "spread", "tokens/s", "pairs/s"});
  return row_of({.direction = "direction", .kernel = "kernel"},
                {"median us", "spread", "GFLOP/s", "GB/s", first.steps > 0 ? "us/step" : "",
                 first.ref_name.starts_with("peer.") ? "x onednn" : "x reference"});
}

std::string table_line(const Record& r) {
  std::vector<std::string> figures{figure(r.median_us), figure(100 * (r.p90_us - r.p10_us) / r.median_us) + " %"};
  if (r.pairs > 0)
    figures.insert(figures.end(), {figure(r.tokens / r.median_us * 1e6), figure(r.pairs / r.median_us * 1e6)});
  else
    figures.insert(figures.end(), {r.flops > 0 ? figure(r.flops / r.median_us / 1e3) : "", figure(r.bytes / r.median_us / 1e3),
                                   r.steps > 0 ? figure(r.median_us / r.steps) : "", r.ref_name.empty() ? "" : figure(r.ratio())});
  return row_of(r, figures);
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "cpu";
}

}  // namespace everglow::bench
