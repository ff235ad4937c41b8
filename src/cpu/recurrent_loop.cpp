// The division of a time loop among threads.
#include "cpu/recurrent_loop.hpp"

#include <algorithm>

namespace everglow::cpu {
namespace {

/// Rows that are worth a thread of their own: fewer, and the packed weights are read for too little arithmetic.
constexpr std::int64_t rows_of_a_thread = 16;
/// Operations below which a second thread costs more than it brings (about 10 us of one core).
constexpr std::int64_t work_of_a_thread = 1'000'000;

void add_direction(LoopSplit& split, const RecurrentShape& s, std::int64_t direction, int threads, std::int64_t grain) {
  const std::int64_t slices = (s.blocks() + grain - 1) / grain;
  if (s.batch >= rows_of_a_thread * threads || slices <= 1) {
    const std::int64_t n = std::clamp<std::int64_t>(s.batch, 1, threads);
    for (std::int64_t i = 0; i < n; ++i) split.parts.push_back({direction, s.batch * i / n, s.batch * (i + 1) / n, 0, s.blocks()});
    return;
  }
  const std::int64_t n = std::min<std::int64_t>(slices, threads);
  for (std::int64_t i = 0; i < n; ++i)
    split.parts.push_back(
        {direction, 0, s.batch, std::min(slices * i / n * grain, s.blocks()), std::min(slices * (i + 1) / n * grain, s.blocks())});
  split.meeting[static_cast<std::size_t>(direction)] = static_cast<int>(n);
}

}  // namespace

int loop_threads(const RecurrentShape& s, int threads) {
  const std::int64_t work = 2 * s.slots * s.steps * s.batch * s.directions * s.hidden * s.hidden;
  return static_cast<int>(std::clamp<std::int64_t>(work / work_of_a_thread, 1, threads));
}

LoopSplit split_loop(const RecurrentShape& s, int threads, std::int64_t grain) {
  LoopSplit split;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    const int share = threads == 1 ? 1 : threads / static_cast<int>(s.directions) + (d < threads % s.directions ? 1 : 0);
    add_direction(split, s, d, share, grain);
  }
  return split;
}

}  // namespace everglow::cpu
