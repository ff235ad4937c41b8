// Times the rows of a problem in turn within one run, so that whatever else the machine does falls on all of them alike.
#pragma once

#include "bench/problem.hpp"

#include <vector>

namespace everglow::bench {

struct Timing {
  double seconds = 1;  // of all rows of one direction together; at least five rounds are made
  int slice_runs = 3;  // samples of a row in a round, at most
};

struct Samples {
  std::string kernel;
  int warmup = 0;          // runs that were not timed at the start
  std::vector<double> us;  // one for each timed run, in order; on a card each is the mean of as many runs as take a millisecond
};

/// The samples of each row, in the order of the rows. `card` is the clock where the rows run on one.
std::vector<Samples> measure(const Problem& problem, std::size_t direction, const Timing& timing, Card* card = nullptr);

}  // namespace everglow::bench
