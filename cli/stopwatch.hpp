// Times of short calls on a machine that others use too: laps over all of them in turn, the median of each lap, and of these the
// least.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace everglow::cli {

struct Lap {
  int samples = 3;      // at least
  double least_us = 0;  // and until they took so long together
  int most_samples = 50;
};

class Stopwatch {
 public:
  explicit Stopwatch(std::function<void(std::int64_t turn)> run) : run_(std::move(run)) {}
  /// One run that is not timed, for threads that fell asleep and code that is not in a cache, then the samples.
  void lap(const Lap& lap);
  double us() const { return best_us_; }  ///< the least median of a lap
  const std::vector<double>& samples() const { return samples_; }

 private:
  double once();
  std::function<void(std::int64_t)> run_;
  std::int64_t turn_ = 0;
  double best_us_ = std::numeric_limits<double>::infinity();
  std::vector<double> samples_;
};

}  // namespace everglow::cli
