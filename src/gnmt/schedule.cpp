// The learning rate's warm-up and halvings, and the part of a run that is done.
#include "gnmt/schedule.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::gnmt {

double rate_at(const Schedule& schedule, std::int64_t step, double part) {
  double rate = schedule.rate;
  if (step + 1 < schedule.warmup) rate *= static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  // Tenths are not exact in binary: without the allowance 0.7 would count as before 0.6 + 0.1.
  constexpr double allowance = 1e-9;
  if (part + allowance < schedule.decay_start) return rate;
  const double halvings = 1 + std::floor((part - schedule.decay_start) * 10 + allowance);
  return std::ldexp(rate, -static_cast<int>(halvings));
}

double part_of_run(const RunLength& length, const RunPosition& position) {
  double part = 1;
  if (length.steps > 0)
    part = static_cast<double>(position.step) / static_cast<double>(length.steps);
  else if (length.epochs > 0)
    part = (static_cast<double>(position.epoch) + position.epoch_part) / static_cast<double>(length.epochs);
  else if (length.minutes > 0)
    part = position.seconds / (60 * length.minutes);
  return std::clamp(part, 0.0, 1.0);
}

double seconds_left(const RunLength& length, const RunPosition& position, double begun_at, double sitting) {
  if (length.minutes > 0) return std::max(0.0, 60 * length.minutes - position.seconds);
  const double part = part_of_run(length, position);
  return part > begun_at ? sitting * (1 - part) / (part - begun_at) : 0;
}

}  // namespace everglow::gnmt
