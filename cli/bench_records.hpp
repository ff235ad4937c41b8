// Records of benchmarks, as `everglow bench --out` and bench/peers_torch.py write them, read again.
#pragma once

#include <string>
#include <vector>

namespace everglow::cli {

struct BenchRecord {
  std::string op{}, line{}, direction{}, kernel{}, dtype{}, device{};
  bool chosen = false;  // a plan takes this row by itself
  int threads = 1;
  double median = 0, p10 = 0, p90 = 0;        // microseconds
  double flops = 0, bytes = 0;                // 0: not counted
  double floor = 0, predicted = 0;            // microseconds; 0: not known
  double peak_gflops = 0, bandwidth_gbs = 0;  // of the device; 0: not known
  double steps = 0, tokens = 0, pairs = 0;    // of one run; 0: none
};

/// Throws Error(io) with file and line for what is no record. `who` begins the message: "bench.compare".
std::vector<BenchRecord> read_records(const std::string& file, const std::string& who);

}  // namespace everglow::cli
