// The learning rate over a run and the part of a run that is done.
#include "gnmt/schedule.hpp"

#include <gtest/gtest.h>

namespace everglow::gnmt {
namespace {

TEST(Schedule, warms_up_linearly_and_stays_sanitize) {
  const Schedule schedule{.rate = 0.008, .warmup = 4, .decay_start = 0.6};
  EXPECT_DOUBLE_EQ(rate_at(schedule, 0, 0), 0.002);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 1, 0), 0.004);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 2, 0), 0.006);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 3, 0), 0.008);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 400, 0.5999), 0.008);
}

TEST(Schedule, without_warmup_starts_at_the_full_rate) {
  EXPECT_DOUBLE_EQ(rate_at({.rate = 0.5, .warmup = 0, .decay_start = 1}, 0, 0), 0.5);
}

TEST(Schedule, halves_at_the_start_of_decay_and_at_each_further_tenth) {
  const Schedule schedule{.rate = 1, .warmup = 0, .decay_start = 0.6};
  EXPECT_EQ(rate_at(schedule, 9, 0.6), 0.5);
  EXPECT_EQ(rate_at(schedule, 9, 0.699), 0.5);
  EXPECT_EQ(rate_at(schedule, 9, 0.7), 0.25);  // 0.7 - 0.6 is below 0.1 in binary
  EXPECT_EQ(rate_at(schedule, 9, 0.8), 0.125);
  EXPECT_EQ(rate_at(schedule, 9, 0.9), 0.0625);
  EXPECT_EQ(rate_at(schedule, 9, 0.999), 0.0625);
}

TEST(Schedule, halves_exactly_on_the_steps_of_a_run) {
  const Schedule schedule{.rate = 1, .warmup = 0, .decay_start = 0.6};
  const RunLength length{.steps = 1000};
  int changes = 0;
  double before = 1;
  for (std::int64_t step = 0; step < 1000; ++step) {
    const double rate = rate_at(schedule, step, part_of_run(length, {.step = step}));
    if (rate != before) {
      EXPECT_EQ(step % 100, 0) << step;
      EXPECT_EQ(rate, before / 2);
      ++changes;
    }
    before = rate;
  }
  EXPECT_EQ(changes, 4);
}

TEST(RunLength, counts_steps_epochs_or_time) {
  const RunPosition position{.step = 30, .epoch = 1, .epoch_part = 0.5, .seconds = 90};
  EXPECT_DOUBLE_EQ(part_of_run({.steps = 120}, position), 0.25);
  EXPECT_DOUBLE_EQ(part_of_run({.epochs = 3}, position), 0.5);
  EXPECT_DOUBLE_EQ(part_of_run({.minutes = 2}, position), 0.75);
  EXPECT_EQ(part_of_run({.steps = 20}, position), 1);
}

TEST(RunLength, foretells_the_time_left) {
  const RunPosition position{.step = 50, .seconds = 90};
  EXPECT_EQ(seconds_left({.minutes = 2}, position, 0, 1), 30);
  EXPECT_DOUBLE_EQ(seconds_left({.steps = 100}, position, 0.25, 10), 20);  // a quarter took 10 s, a half is left
  EXPECT_EQ(seconds_left({.steps = 100}, position, 0.5, 0), 0);
}

}  // namespace
}  // namespace everglow::gnmt
