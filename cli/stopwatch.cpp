// Timed laps.
#include "cli/stopwatch.hpp"

#include "bench/record.hpp"

#include <algorithm>
#include <chrono>

namespace everglow::cli {

double Stopwatch::once() {
  const std::int64_t turn = turn_++;
  const auto start = std::chrono::steady_clock::now();
  run_(turn);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void Stopwatch::lap(const Lap& lap) {
  once();
  std::vector<double> here;
  double sum = 0;
  while (static_cast<int>(here.size()) < lap.samples || (sum < lap.least_us && static_cast<int>(here.size()) < lap.most_samples)) {
    here.push_back(once());
    sum += here.back();
  }
  best_us_ = std::min(best_us_, bench::quantile(here, 0.5));
  samples_.insert(samples_.end(), here.begin(), here.end());
}

}  // namespace everglow::cli
