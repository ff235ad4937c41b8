// everglow plan --self-test: a grid of problems, predicted and measured. A report: whatever the errors are, it succeeds.
#include "bench/problem.hpp"
#include "bench/record.hpp"
#include "cases/case.hpp"
#include "cli/bar.hpp"
#include "cli/plan_measure.hpp"
#include "cli/plan_table.hpp"
#include "cli/probe.hpp"
#include "cli/stopwatch.hpp"
#include "cli/written_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace everglow::cli {
namespace {

constexpr int laps = 6;
constexpr Lap lap_of_pass{.samples = 3, .least_us = 30'000, .most_samples = 60};
constexpr const char* tested_layers[] = {"linear", "recurrent", "attention"};

struct Row {
  std::string layer, line, pass, kernel, dtype;
  double predicted_us = 0, measured_us = 0, p10 = 0, p90 = 0;
  double error() const { return predicted_us / measured_us - 1; }
};

/// A case with what its layer brings: runs made anew for each lap, and the explanation by the figures of the whole run.
struct Problem {
  cases::Case c;
  std::vector<Row> rows;
  std::vector<std::vector<double>> samples;
};

LinearDescription linear_of(const cases::Case& c) {
  return {.inputs = c.integer("inputs", 1),
          .outputs = c.integer("outputs", 1),
          .dtype = bench::dtype_of(c),
          .layout = bench::named<LinearLayout>(c, "layout", {"outputs_inputs", "inputs_outputs"}),
          .activation = bench::activation_of(c),
          .training = true};
}

RecurrentDescription recurrent_of(const cases::Case& c) {
  RecurrentDescription d{.cell = bench::named<Cell>(c, "cell", {"lstm", "gru", "gru_reset_before", "tanh", "relu"}),
                         .inputs = c.integer("inputs", 1),
                         .hidden = c.integer("hidden", 1),
                         .layers = c.integer("layers", 1),
                         .bidirectional = c.flag("bidirectional")};
  d.dtype = bench::dtype_of(c), d.training = true;
  return d;
}

AttentionDescription attention_of(const cases::Case& c) {
  AttentionDescription d{
      .heads = c.integer("heads", 1), .kv_heads = c.integer("kv_heads", 0), .head_dim = c.integer("head_dim", 1)};
  d.causal = c.flag("causal"), d.dtype = bench::dtype_of(c), d.training = true;
  return d;
}
AttentionSizes attention_sizes_of(const cases::Case& c) {
  return {.batch = c.integer("batch", 1), .queries = c.integer("queries", 1), .keys = c.integer("keys", 1)};
}
RecurrentSizes recurrent_sizes_of(const cases::Case& c) { return {c.integer("steps", 1), c.integer("batch", 1)}; }

std::vector<PassRun> runs_of(OperandMemory& memory, const cases::Case& c) {
  if (c.layer == "linear") return linear_runs(memory, linear_of(c), {c.integer("batch", 1)}, {});
  if (c.layer == "recurrent") return recurrent_runs(memory, recurrent_of(c), recurrent_sizes_of(c), {});
  return attention_runs(memory, attention_of(c), attention_sizes_of(c), {});
}

Explanation explained(const cases::Case& c) {
  const DeviceDescription cpu = described_cpu();
  const PlanOptions options{.advice = false};
  if (c.layer == "linear") return LinearPlan(linear_of(c), {c.integer("batch", 1)}, cpu, options).explain();
  if (c.layer == "recurrent") return RecurrentPlan(recurrent_of(c), recurrent_sizes_of(c), cpu, options).explain();
  return AttentionPlan(attention_of(c), attention_sizes_of(c), cpu, options).explain();
}

void time_problem(OperandMemory& memory, Problem& problem) {
  const std::vector<PassRun> runs = runs_of(memory, problem.c);
  problem.rows.resize(runs.size()), problem.samples.resize(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Stopwatch watch(runs[i].run);
    watch.lap(lap_of_pass);
    Row& row = problem.rows[i];
    row.pass = runs[i].name;
    row.measured_us = row.measured_us == 0 ? watch.us() : std::min(row.measured_us, watch.us());
    problem.samples[i].insert(problem.samples[i].end(), watch.samples().begin(), watch.samples().end());
  }
}

std::vector<Problem> grid(int most) {
  std::vector<Problem> out;
  for (const char* layer : tested_layers) {
    const std::vector<std::string> lines = self_test_lines(layer);
    const std::size_t count = most > 0 ? std::min<std::size_t>(lines.size(), static_cast<std::size_t>(most)) : lines.size();
    for (std::size_t i = 0; i < count; ++i) out.push_back({.c = cases::parse(lines[i]), .rows = {}, .samples = {}});
  }
  return out;
}

/// Laps over the probe and the grid in turn, so that whatever else the machine does falls on both.
ProbeResult measure_grid(std::vector<Problem>& problems) {
  OperandMemory memory;
  Probe probe(memory, default_threads());
  CountBar bar(stderr, "problem", laps * std::ssize(problems));
  std::int64_t done = 0;
  for (int lap = 0; lap < laps; ++lap) {
    bar.show(done, "measuring this CPU");
    probe.lap();
    for (Problem& problem : problems) {
      bar.show(done++, problem.c.line);
      time_problem(memory, problem);
    }
  }
  return probe.result();
}

void predict_rows(std::vector<Problem>& problems) {
  for (Problem& problem : problems) {
    const Explanation e = explained(problem.c);
    for (std::size_t i = 0; i < problem.rows.size(); ++i) {
      Row& row = problem.rows[i];
      row.layer = problem.c.layer, row.line = problem.c.line, row.kernel = e.kernel, row.dtype = e.dtype;
      row.predicted_us = predicted_us(e, row.pass);
      row.p10 = bench::quantile(problem.samples[i], 0.1), row.p90 = bench::quantile(problem.samples[i], 0.9);
    }
  }
}

double median_error(const std::vector<Problem>& problems, std::string_view layer) {
  std::vector<double> errors;
  for (const Problem& problem : problems)
    for (const Row& row : problem.rows)
      if (layer == "all" || row.layer == layer) errors.push_back(std::fabs(row.error()));
  return bench::quantile(errors, 0.5);
}

Json row_json(const Row& row) {
  return {{"layer", row.layer},
          {"case", row.line},
          {"pass", row.pass},
          {"kernel", row.kernel},
          {"dtype", row.dtype},
          {"predicted_us", row.predicted_us},
          {"measured_us", row.measured_us},
          {"p10", row.p10},
          {"p90", row.p90},
          {"error", row.error()}};
}

/// As the benchmark's records, with the prediction.
void write_rows(const std::string& file, const std::vector<Problem>& problems, const ProbeResult& probe) {
  std::string lines;
  for (const Problem& problem : problems)
    for (const Row& row : problem.rows) {
      bench::Record record{.op = row.layer, .line = row.line, .direction = row.pass, .kernel = row.kernel, .dtype = row.dtype};
      record.device = probe.cpu, record.isa = probe.isa, record.threads = probe.threads;
      record.median_us = row.measured_us, record.p10 = row.p10, record.p90 = row.p90;
      Json line = Json::parse(bench::json_line(record));
      for (const char* unknown : {"warmup", "samples_us", "flops", "bytes", "ref", "ratio"}) line.erase(unknown);
      line["predicted_us"] = std::round(1000 * row.predicted_us) / 1000;
      line["error"] = std::round(10'000 * row.error()) / 10'000;
      lines += line.dump() + '\n';
    }
  write_file("plan", "--out", file, lines);
}

Json self_test_json(const std::vector<Problem>& problems, const ProbeResult& probe) {
  Json rows = Json::array(), errors;
  for (const Problem& problem : problems)
    for (const Row& row : problem.rows) rows.push_back(row_json(row));
  for (const char* layer : {"linear", "recurrent", "attention", "all"}) errors[layer] = median_error(problems, layer);
  return {{"schema_version", plan_schema_version},
          {"self_test",
           {{"cpu", probe.cpu}, {"isa", probe.isa}, {"threads", probe.threads}, {"rows", rows}, {"median_error", errors}}}};
}

std::string self_test_text(const std::vector<Problem>& problems, const ProbeResult& probe) {
  std::string out = fmt::format("{}, {}, {} threads\n", probe.cpu, probe.isa, probe.threads);
  for (const char* layer : tested_layers) {
    std::vector<std::vector<std::string>> rows{{layer, "pass", "predicted", "measured", "error"}};
    for (const Problem& problem : problems)
      for (const Row& row : problem.rows)
        if (row.layer == layer)
          rows.push_back({row.line.substr(row.layer.size() + 1),
                          row.pass == "activation_gradient" ? "dx"
                          : row.pass == "weight_gradient"   ? "dw"
                                                            : row.pass,
                          time_text(row.predicted_us), time_text(row.measured_us), fmt::format("{:+.0f} %", 100 * row.error())});
    out += "\n" + aligned_table(rows, 2);
  }
  out += "\nmedian error";
  for (const char* layer : {"linear", "recurrent", "attention", "all"})
    out +=
        fmt::format("{} {} {:.0f} %", std::string_view(layer) == "linear" ? "" : ",", layer, 100 * median_error(problems, layer));
  return out + "\n";
}

}  // namespace

void run_self_test(const SelfTest& options) {
  std::vector<Problem> problems = grid(options.problems);
  const ProbeResult probe = measure_grid(problems);
  use_figures(probe.figures);
  predict_rows(problems);
  if (options.json)
    fmt::print("{}\n", self_test_json(problems, probe).dump(2));
  else
    fmt::print("{}", self_test_text(problems, probe));
  if (!options.out.empty()) write_rows(options.out, problems, probe);
  write_probe(probe);  // last: a folder that cannot be written loses nothing of the result
}

}  // namespace everglow::cli
