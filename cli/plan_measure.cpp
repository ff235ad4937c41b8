// everglow plan LAYER --measure
#include "cli/plan_measure.hpp"

#include "bench/record.hpp"
#include "cli/plan_table.hpp"
#include "cli/probe.hpp"
#include "cli/stopwatch.hpp"

#include <fmt/format.h>

namespace everglow::cli {

double predicted_us(const Explanation& e, std::string_view pass) {
  double forward = 0;
  for (const ExplanationPass& p : e.passes) {
    if (p.name == pass) return p.time_us;
    if (p.name == "forward") forward = p.time_us;
  }
  return e.time_us - forward;
}

std::vector<MeasuredPass> measure_passes(const std::vector<PassRun>& runs, const Explanation& explanation) {
  constexpr int laps = 5;
  constexpr Lap each{.samples = 3, .least_us = 40'000, .most_samples = 200};
  std::vector<Stopwatch> watches;
  for (const PassRun& run : runs) watches.emplace_back(run.run);
  for (int lap = 0; lap < laps; ++lap)
    for (Stopwatch& watch : watches) watch.lap(each);
  std::vector<MeasuredPass> out;
  for (std::size_t i = 0; i < runs.size(); ++i)
    out.push_back({runs[i].name, predicted_us(explanation, runs[i].name), watches[i].us(),
                   bench::quantile(watches[i].samples(), 0.1), bench::quantile(watches[i].samples(), 0.9)});
  return out;
}

std::string measured_text(const std::vector<MeasuredPass>& passes) {
  std::vector<std::vector<std::string>> rows{{"pass", "predicted", "measured", "p10 to p90", "error"}};
  for (const MeasuredPass& p : passes)
    rows.push_back({p.name, time_text(p.predicted_us), time_text(p.measured_us),
                    fmt::format("{} to {}", time_text(p.p10), time_text(p.p90)), fmt::format("{:+.0f} %", 100 * p.error())});
  return "\nmeasured on " + bench::processor() + ", operands from memory\n" + aligned_table(rows);
}

Json measured_json(const std::vector<MeasuredPass>& passes) {
  Json out = Json::array();
  for (const MeasuredPass& p : passes)
    out.push_back({{"pass", p.name},
                   {"predicted_us", p.predicted_us},
                   {"measured_us", p.measured_us},
                   {"p10", p.p10},
                   {"p90", p.p90},
                   {"error", p.error()}});
  return out;
}

OperandMemory& measured_cpu() {
  static OperandMemory memory;
  static const bool once = [] {
    use_figures(probe_cpu(memory, default_threads()).figures);
    return true;
  }();
  static_cast<void>(once);
  return memory;
}

}  // namespace everglow::cli
