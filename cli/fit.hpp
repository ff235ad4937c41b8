// What single things cost, found from the times of calls that hold different numbers of them.
#pragma once

#include <vector>

namespace everglow::cli {

/// What was counted in one call, and its time.
struct Counted {
  std::vector<double> counts;
  double us;
};
/// The costs of what was counted, none below 0, whose predictions have the least squares of relative errors.
std::vector<double> fit_costs(const std::vector<Counted>& calls);

}  // namespace everglow::cli
