// Non-negative least squares of relative errors.
#include "cli/fit.hpp"

#include <algorithm>
#include <cstddef>

namespace everglow::cli {

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
