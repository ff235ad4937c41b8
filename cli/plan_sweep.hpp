// A plan over a range of sizes: batch=1:4096:x2, several at once.
#pragma once

#include "cli/plan_json.hpp"
#include "cli/plan_request.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace everglow::cli {

/// What a sweep shows of one plan.
struct PlanPoint {
  std::vector<std::int64_t> sizes;  // of the swept dimensions
  double time_us = 0, floor_us = 0;
  double measured_us = 0;  // all passes; 0: not measured
  double flops = 0;        // of the products
  double bytes = 0;        // that they move, each operand once
  double per_second = 0;   // rows, sequences or tokens
  double tflops() const { return time_us > 0 ? flops / time_us / 1e6 : 0; }
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
};
PlanPoint point_of(const Explanation& explanation, double useful);

struct Sweep {
  std::string title, unit;              // unit: what per_second counts
  std::vector<std::string> dimensions;  // as on the command line: "batch"
  std::vector<PlanPoint> points;
  double peak_tflops = 0, bandwidth_gbs = 0;
  std::size_t knee = 0;  // the first point of at least 90 % of the best rate
};

/// Changes the request's sizes and asks `point` at each of them. The title is that of the first.
Sweep run_sweep(const PlanRequest& request, const std::function<std::string()>& title, const std::string& unit,
                const std::function<PlanPoint()>& point);
std::string sweep_text(const Sweep& sweep);
Json sweep_json(const Sweep& sweep, const PlanRequest& request);
/// One page without links: throughput and time over the first dimension, the knee, and the roofline.
std::string sweep_html(const Sweep& sweep);
/// To standard output as a table or JSON, and to the file of --html.
void print_sweep(const Sweep& sweep, const PlanRequest& request);

}  // namespace everglow::cli
