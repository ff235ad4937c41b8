// Chooses cases and rows, times them, and writes what came.
#include "bench/session.hpp"

#include "bench/cuda/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace everglow::bench {
namespace {

constexpr double plain_flops = 1e9;  // above it a run of plain loops takes seconds
constexpr double mebibyte = 1024 * 1024;

/// Rows that the user asked for; of the others the plain loops are left out where they would take minutes.
void choose_rows(const Request& request, const cases::Case& c, Problem& problem) {
  const double flops = problem.directions.front().flops;
  if (request.settings.rows.empty() && flops > plain_flops)
    std::erase_if(problem.rows, [](const Row& row) { return is_plain(row.kernel); });
  if (problem.rows.empty()) wrong("--kernel: none of them accepts \"" + without_tags(c.line) + "\"");
}

std::vector<std::size_t> chosen_directions(const Request& request, const cases::Case& c, const Problem& problem) {
  std::vector<std::size_t> out;
  std::string names;
  for (std::size_t i = 0; i < problem.directions.size(); ++i) {
    const std::string& name = problem.directions[i].name;
    names += (names.empty() ? "" : ", ") + name;
    if (request.direction.empty() || request.direction == name) out.push_back(i);
  }
  if (out.empty()) wrong("--direction: \"" + without_tags(c.line) + "\" has " + names + ", got \"" + request.direction + "\"");
  return out;
}

/// What the others are compared with: oneDNN, else the reference; on a card the quickest peer.
void refer(std::vector<Record>& all) {
  const Record* ref = nullptr;
  for (const Record& r : all) {
    const bool peer = r.kernel.starts_with("peer.");
    if (r.driver.empty() ? r.kernel == "peer.onednn" || (is_reference(r.kernel) && ref == nullptr)
                         : peer && (ref == nullptr || r.median_us < ref->median_us))
      ref = &r;
  }
  if (ref == nullptr) return;
  const std::string name = ref->kernel;
  const double us = ref->median_us;
  for (Record& r : all) r.ref_name = name, r.ref_us = us;
}

/// What a record says of where it was made.
Record blank(const Settings& settings) {
  Record out{.threads = settings.threads};
  if (settings.card)
    out.device = settings.card->name, out.isa = "cuda", out.driver = settings.card->driver, out.nvcc = settings.card->toolkit;
  else
    out.device = processor(), out.isa = settings.device.isa;
  return out;
}

}  // namespace

void wrong(const std::string& what) { throw Error(ErrorCode::invalid_argument, "bench", what); }

void open_device(Settings& settings, Device device) {
  for (const BackendStatus& backend : backends())
    if (device.kind == DeviceKind::cuda && backend.name == "cuda" && !backend.usable)
      throw Error(ErrorCode::unsupported, "bench", "--device " + to_string(device) + ": " + backend.reason);
  setenv("EVERGLOW_TUNED", "", 0);  // choices that tuned=1 measures stay in this process
  settings.card = open_card(device);
  settings.device = DeviceDescription(device);
  settings.threads = 1;
}

std::int64_t rotation_of(const DeviceDescription& device) {
  const double cache = device.device.kind == DeviceKind::cpu ? static_cast<double>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)))
                                                             : static_cast<double>(device.figures.l2_bytes);
  return static_cast<std::int64_t>(std::clamp(2 * cache, 64 * mebibyte, 256 * mebibyte));
}

std::string without_tags(const std::string& line) {
  const std::string text = line.substr(0, line.find('#'));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::vector<cases::Case> chosen_cases(const Request& request) {
  if (!request.explicit_line.empty()) return {cases::parse(request.explicit_line)};
  const DeviceKind kind = request.settings.where().kind;
  const std::string tag = !request.tag.empty() ? request.tag : kind == DeviceKind::cpu ? "bench" : "card";
  std::vector<cases::Case> out = cases::timed(tag, kind);
  std::erase_if(out, [&](const cases::Case& c) {
    return (!request.layer.empty() && c.layer != request.layer) || c.line.find(request.filter) == std::string::npos;
  });
  if (out.empty())
    wrong("no case" + (request.layer.empty() ? "" : " of " + request.layer) + " with the tag \"" + tag + "\" holds \"" +
          request.filter + "\"; --list shows them, --tag and --filter choose");
  return out;
}

Chosen chosen_problem(const Request& request, const cases::Case& c) {
  Chosen out{.problem = make_problem(c, request.settings)};
  choose_rows(request, c, out.problem);
  out.directions = chosen_directions(request, c, out.problem);
  return out;
}

std::vector<Record> records(const Request& request, const cases::Case& c, const Problem& problem, std::size_t direction) {
  const Direction& d = problem.directions[direction];
  const Roof roof = roof_of(parse_dtype(problem.dtype), request.settings);
  const std::vector<Samples> samples = measure(problem, direction, request.timing, request.settings.card.get());
  std::vector<Record> out;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const Samples& s = samples[row];
    const Expected& expected = problem.rows[row].expected[direction];
    Record r = blank(request.settings);
    r.op = c.layer, r.line = without_tags(c.line), r.direction = d.name, r.kernel = s.kernel, r.dtype = problem.dtype;
    r.warmup = s.warmup, r.samples_us = s.us, r.flops = d.flops, r.bytes = d.bytes;
    r.steps = d.steps, r.tokens = d.tokens, r.pairs = d.pairs;
    r.chosen = problem.rows[row].chosen;
    r.floor_us = expected.floor_us, r.predicted_us = expected.predicted_us;
    r.peak_gflops = roof.peak_gflops, r.bandwidth_gbs = roof.bandwidth_gbs, r.figures = roof.figures;
    r.median_us = quantile(s.us, 0.5), r.p10 = quantile(s.us, 0.1), r.p90 = quantile(s.us, 0.9);
    out.push_back(std::move(r));
  }
  refer(out);
  return out;
}

std::string session_head(const Settings& settings) {
  const Record r = blank(settings);
  const std::string how = settings.card ? "driver " + r.driver + ", CUDA " + r.nvcc
                                        : r.isa + ", " + std::to_string(r.threads) + (r.threads == 1 ? " thread" : " threads");
  return r.device + ", " + how + ", seed " + std::to_string(settings.seed);
}

Output::Output(const Request& request) : request_(request) {
  if (request.out.empty()) return;
  file_.open(request.out, request.append ? std::ios::app : std::ios::out);
  if (!file_) throw Error(ErrorCode::io, "bench", "--out: cannot write \"" + request.out + "\"");
}

void Output::begin(const cases::Case& c) {
  if (!request_.json) std::printf("\n%s\n", without_tags(c.line).c_str());
  headed_ = false;
}

void Output::add(const std::vector<Record>& records) {
  if (!request_.json && !headed_) std::printf("%s", table_head(records.front()).c_str());
  headed_ = true;
  for (const Record& record : records) std::printf("%s", (request_.json ? json_line(record) : table_line(record)).c_str());
  std::fflush(stdout);
  keep(records);
}

void Output::keep(const std::vector<Record>& records) {
  if (!file_.is_open()) return;
  for (const Record& record : records) file_ << json_line(record) << std::flush;
  if (!file_) throw Error(ErrorCode::io, "bench", "--out: writing \"" + request_.out + "\" failed");
}

void time_cases(const Request& request, const std::vector<cases::Case>& all, const Progress& progress) {
  Output output(request);
  if (!request.json) std::printf("%s\n", session_head(request.settings).c_str());
  if (request.settings.peers && request.settings.card)
    for (const std::string& missing : missing_peers()) std::fprintf(stderr, "no rows of a peer: %s\n", missing.c_str());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const cases::Case& c = all[i];
    progress.show(static_cast<std::int64_t>(i), without_tags(c.line));
    const Chosen chosen = chosen_problem(request, c);
    progress.erase();
    output.begin(c);
    for (const std::size_t direction : chosen.directions) {
      progress.show(static_cast<std::int64_t>(i), without_tags(c.line) + ' ' + chosen.problem.directions[direction].name);
      const std::vector<Record> found = records(request, c, chosen.problem, direction);
      progress.erase();
      output.add(found);
    }
  }
}

}  // namespace everglow::bench
