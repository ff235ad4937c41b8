// The timed loop. A round gives each row a slice of up to three runs; where runs are short, a run before them is not timed, for it
// pays for threads that fell asleep while another row ran. On a card a timed run is several, between two events.
#include "bench/measure.hpp"

#include <algorithm>
#include <chrono>

namespace everglow::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int least_rounds = 5, most_rounds = 40, warmup_runs = 5;
constexpr double card_sample_us = 1000;  // of a sample on a card, at least: events tick in half microseconds
constexpr int most_card_runs = 200;
constexpr double slice_us = 20'000;    // a slice ends after so long
constexpr double warmup_us = 100'000;  // and so does the warm-up of a row
constexpr double slow_us = 50'000;     // runs on a card hardly differ, so that three are enough where they take so long
constexpr std::size_t slow_samples = 3;
constexpr double short_us = 5'000;  // waking threads takes up to 0.1 ms: more than 1 % of a run below this

double elapsed_us(Clock::time_point since) { return std::chrono::duration<double, std::micro>(Clock::now() - since).count(); }

/// One row with the set that its next run takes.
class Runner {
 public:
  Runner(const Row& row, std::size_t direction, Card* card)
      : pass_(row.passes[direction]), sets_(row.sets), card_(card), samples_{.kernel = row.kernel, .us = {}} {
    if (pass_.prepare)
      for (std::int64_t set = 0; set < sets_; ++set) pass_.prepare(set);
    const auto start = Clock::now();
    do {
      last_us_ = run();
      ++samples_.warmup;
    } while (samples_.warmup < warmup_runs && elapsed_us(start) < warmup_us);
    if (card_ == nullptr) return;
    times_ = std::clamp(static_cast<int>(card_sample_us / std::max(last_us_, 1.0)), 1, most_card_runs);
  }
  void slice(int runs) {
    if (card_ != nullptr && last_us_ > slow_us && samples_.us.size() >= slow_samples) return;
    if (card_ == nullptr && last_us_ < short_us) run();
    const auto start = Clock::now();
    for (int i = 0; i < runs && (i == 0 || elapsed_us(start) < slice_us); ++i) samples_.us.push_back(last_us_ = run());
  }
  Samples take() { return std::move(samples_); }

 private:
  double run() {
    if (card_ != nullptr) return card_->microseconds([this] { pass_.run(next_++ % sets_); }, times_);
    const std::int64_t set = next_++ % sets_;
    const auto start = Clock::now();
    pass_.run(set);
    return elapsed_us(start);
  }
  const Pass& pass_;
  std::int64_t sets_, next_ = 0;
  Card* card_;
  int times_ = 1;
  double last_us_ = 0;
  Samples samples_;
};

}  // namespace

std::vector<Samples> measure(const Problem& problem, std::size_t direction, const Timing& timing, Card* card) {
  std::vector<Runner> runners;
  runners.reserve(problem.rows.size());
  for (const Row& row : problem.rows) runners.emplace_back(row, direction, card);
  const auto start = Clock::now();
  for (int round = 0; round < most_rounds && (round < least_rounds || elapsed_us(start) < timing.seconds * 1e6); ++round)
    for (Runner& runner : runners) runner.slice(timing.slice_runs);
  std::vector<Samples> out;
  for (Runner& runner : runners) out.push_back(runner.take());
  return out;
}

}  // namespace everglow::bench
