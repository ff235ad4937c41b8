// Writes records as JSON and as a table.
#include "bench/record.hpp"

#include "everglow_bench_commit.hpp"

#include <algorithm>
#include <cmath>
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

std::string text_or_null(const std::string& text) { return text.empty() ? "null" : quoted(text); }

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
constexpr int widths[] = {-10, -8, -8, -8, -9, -8, -9};

/// On a card the names are longer, and a terminal of 100 columns is not what people log in with.
std::string row_of(const Record& r, bool on_card, const std::vector<std::string>& figures) {
  std::string out = padded(r.direction, on_card ? 20 : 17) + padded(r.kernel, on_card ? 35 : 23);
  for (std::size_t i = 0; i < figures.size(); ++i) out += padded(figures[i], widths[i]);
  return out + "\n";
}

/// Three digits at least, and no more decimals than they need.
std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}
/// What nobody knows is an empty cell, and null in JSON.
std::string known(double value, const char* unit = "") { return value > 0 ? figure(value) + unit : std::string(); }
std::string json_number(double value) { return value > 0 ? number(value) : "null"; }

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - std::floor(place));
}

std::string json_line(const Record& r) {
  std::string samples;
  for (const double us : r.samples_us) samples += (samples.empty() ? "" : ",") + number(us);
  const bool referred = !r.ref_name.empty();
  std::string out = "{\"op\":" + quoted(r.op) + ",\"case\":" + quoted(r.line) + ",\"direction\":" + quoted(r.direction);
  out += ",\"kernel\":" + quoted(r.kernel) + ",\"chosen\":" + (r.chosen ? "true" : "false");
  out += ",\"dtype\":" + quoted(r.dtype) + ",\"device\":" + quoted(r.device);
  out += ",\"isa\":" + quoted(r.isa) + ",\"threads\":" + std::to_string(r.threads);
  out += ",\"driver\":" + text_or_null(r.driver) + ",\"nvcc\":" + text_or_null(r.nvcc);
  out += ",\"commit\":" + quoted(build_commit) + std::string(",\"dirty\":") + (build_dirty ? "true" : "false");
  out += ",\"date\":" + quoted(utc_now()) + ",\"warmup\":" + std::to_string(r.warmup) + ",\"samples_us\":[" + samples + "]";
  out += ",\"median_us\":" + number(r.median_us) + ",\"p10\":" + number(r.p10) + ",\"p90\":" + number(r.p90);
  out += ",\"flops\":" + number(r.flops) + ",\"bytes\":" + number(r.bytes) + ",\"floor_us\":" + json_number(r.floor_us);
  out += ",\"floor_share\":" + json_number(r.floor_share()) + ",\"predicted_us\":" + json_number(r.predicted_us);
  out += ",\"peak_gflops\":" + number(r.peak_gflops) + ",\"bandwidth_gbs\":" + number(r.bandwidth_gbs);
  out += ",\"figures\":" + quoted(r.figures);
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
  const bool model = first.pairs > 0;
  std::vector<std::string> heads{"median us", "spread"};
  heads.emplace_back(model ? "tok/s" : "GFLOP/s");
  heads.emplace_back(model ? "pairs/s" : first.steps > 0 ? "us/step" : "GB/s");
  heads.insert(heads.end(), {"plan us", "floor"});
  const bool on_card = !first.driver.empty();
  if (!model) heads.emplace_back(on_card ? "x peer" : first.ref_name.starts_with("peer.") ? "x onednn" : "x plain");
  return row_of({.direction = "direction", .kernel = "kernel"}, on_card, heads);
}

std::string table_line(const Record& r) {
  const bool model = r.pairs > 0;
  std::vector<std::string> figures{figure(r.median_us), figure(100 * (r.p90 - r.p10) / r.median_us) + " %"};
  figures.push_back(model ? figure(r.tokens / r.median_us * 1e6) : known(r.flops / r.median_us / 1e3));
  figures.push_back(model         ? figure(r.pairs / r.median_us * 1e6)
                    : r.steps > 0 ? figure(r.median_us / r.steps)
                                  : figure(r.bytes / r.median_us / 1e3));
  figures.insert(figures.end(), {known(r.predicted_us), known(100 * r.floor_share(), " %")});
  if (!model) figures.push_back(r.ref_name.empty() ? "" : figure(r.ratio()));
  return row_of(r, !r.driver.empty(), figures);
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "cpu";
}

}  // namespace everglow::bench
