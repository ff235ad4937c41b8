// Timed laps, and non-negative least squares.
#include "cli/stopwatch.hpp"

#include "bench/measure.hpp"

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

std::vector<double> fit_costs(const std::vector<Counted>& calls) {
  if (calls.empty()) return {};
  const std::size_t n = calls.front().counts.size();
  std::vector<double> costs(n, 0), rest(calls.size(), 1);  // of each relative time, what is not explained yet
  const auto share = [&](std::size_t call, std::size_t i) { return calls[call].counts[i] / calls[call].us; };
  // One cost after the other, each to its best value beside the rest: slow where two go together, but there are few.
  constexpr int rounds = 20000;
  for (int round = 0; round < rounds; ++round) {
    double moved = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double along = 0, square = 0;
      for (std::size_t call = 0; call < calls.size(); ++call)
        along += share(call, i) * rest[call], square += share(call, i) * share(call, i);
      if (square == 0) continue;
      const double step = std::max(costs[i] + along / square, 0.0) - costs[i];
      costs[i] += step;
      for (std::size_t call = 0; call < calls.size(); ++call) rest[call] -= step * share(call, i);
      moved = std::max(moved, step * step * square);
    }
    if (moved < 1e-16) break;
  }
  return costs;
}

}  // namespace everglow::cli
