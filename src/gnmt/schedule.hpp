// How far a training run has come and which learning rate that gives: pure functions of the step, the part of the run and the
// clock.
#pragma once

#include <cstdint>

namespace everglow::gnmt {

struct Schedule {
  double rate = 3e-3;
  std::int64_t warmup = 200;  // steps
  double decay_start = 0.6;   // part of the run, 0 ... 1; 1 and more: never
};

/// Rate of the step with index `step` (0 is the first): it rises linearly over the warm-up, stays, is halved when `part` of the run
/// reaches decay_start, and again at each further tenth of the run.
double rate_at(const Schedule& schedule, std::int64_t step, double part);

/// Exactly one field is positive.
struct RunLength {
  std::int64_t steps = 0, epochs = 0;
  double minutes = 0;
};

struct RunPosition {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // whole epochs done
  double epoch_part = 0;   // of the epoch that is running, 0 ... 1
  double seconds = 0;      // spent so far, in all sittings
};

/// 0 ... 1; 1 where the run is over.
double part_of_run(const RunLength& length, const RunPosition& position);
/// Seconds until the run is over, from the pace since `begun_at` (part of the run) `sitting` seconds ago; 0 where nothing is known
/// yet.
double seconds_left(const RunLength& length, const RunPosition& position, double begun_at, double sitting);

}  // namespace everglow::gnmt
