// Predicted beside measured: the passes of a plan, run on this machine.
#pragma once

#include "cli/layer_runs.hpp"
#include "cli/plan_json.hpp"

#include <everglow/everglow.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace everglow::cli {

struct MeasuredPass {
  std::string name;
  double predicted_us = 0;
  double measured_us = 0;   // the least median of a lap
  double p10 = 0, p90 = 0;  // of all samples
  /// How much the prediction is above the measurement, as a share of it.
  double error() const { return predicted_us / measured_us - 1; }
};

/// What a plan says of a pass by its name; "backward" of a linear layer is all that is not forward.
double predicted_us(const Explanation& explanation, std::string_view pass);
/// Laps over the passes for some tenths of a second.
std::vector<MeasuredPass> measure_passes(const std::vector<PassRun>& runs, const Explanation& explanation);

std::string measured_text(const std::vector<MeasuredPass>& passes);
Json measured_json(const std::vector<MeasuredPass>& passes);

/// Measures this CPU once and lets plans of `cpu` use the figures; the memory that it leaves is for what is measured next.
OperandMemory& measured_cpu();

/// The grid of `everglow plan --self-test`.
struct SelfTest {
  bool asked = false;
  int problems = 0;  // of each layer; 0: all
  bool json = false;
  std::string out;  // file for lines of JSON
};
void run_self_test(const SelfTest& options);

/// Its problems as case lines.
std::vector<std::string> self_test_lines(std::string_view layer);

}  // namespace everglow::cli
