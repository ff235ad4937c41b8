// What one timed row leaves: a line of JSON for programs (docs/bench.md tells its fields) and a line of a table for
// people, which fits 100 columns where a CPU was timed.
#pragma once

#include <string>
#include <vector>

namespace everglow::bench {

struct Record {
  std::string op{}, line{}, direction{}, kernel{}, dtype{}, device{}, isa{};
  std::string driver{}, nvcc{};  // of a card; empty: a CPU
  bool chosen = false;           // a plan takes this row by itself
  int threads = 1;
  int warmup = 0;
  std::vector<double> samples_us{};
  double median_us = 0, p10 = 0, p90 = 0;  // microseconds
  double flops = 0, bytes = 0;
  double floor_us = 0, predicted_us = 0;      // of the plan; 0: it says nothing
  double peak_gflops = 0, bandwidth_gbs = 0;  // of the device, which the floor is made of
  std::string figures{};                      // where these come from
  double steps = 0, tokens = 0, pairs = 0;    // of one run; 0: none
  std::string ref_name{};                     // empty: no reference was timed
  double ref_us = 0;

  double floor_share() const { return floor_us / median_us; }
  double ratio() const { return ref_us / median_us; }  // how many times faster than the reference
};

std::string json_line(const Record& record);
std::string table_head(const Record& first);  // of the table that begins with it
std::string table_line(const Record& record);

/// The q-quantile, 0 ... 1, interpolated between neighbours. At least one value.
double quantile(std::vector<double> values, double q);

/// The model of the processor as /proc/cpuinfo names it, else "cpu".
std::string processor();

}  // namespace everglow::bench
