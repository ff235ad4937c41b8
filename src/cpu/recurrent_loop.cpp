// The division of a time loop among threads.
#include "cpu/recurrent_loop.hpp"

#include "plan/cpu.hpp"

#include <algorithm>

namespace everglow::cpu {
namespace {

/// A part of the units, `slice` of `slices`, each a multiple of `grain` blocks; with a projection as large a share of its outputs.
LoopPart slice_of(const RecurrentShape& s, std::int64_t slice, std::int64_t slices, std::int64_t grain) {
  const auto cut = [&](std::int64_t blocks, std::int64_t i) {
    return std::min((blocks + grain - 1) / grain * i / slices * grain, blocks);
  };
  const auto range = [&](std::int64_t elements) {
    const std::int64_t blocks = (elements + cell_block - 1) / cell_block;
    const std::int64_t first = cut(blocks, slice) * cell_block, padded = cut(blocks, slice + 1) * cell_block;
    return LoopRange{first, std::min(padded, elements), padded};
  };
  return {.first_block = cut(s.blocks(), slice),
          .last_block = cut(s.blocks(), slice + 1),
          .units = range(s.hidden),
          .state = range(s.outputs)};
}

void add_direction(LoopSplit& split, const RecurrentShape& s, std::int64_t direction, int threads, std::int64_t grain) {
  const std::int64_t slices = (s.blocks() + grain - 1) / grain;
  const bool by_rows = s.batch >= plan::loop_rows_of_a_thread * threads || slices <= 1;
  const std::int64_t n = by_rows ? std::clamp<std::int64_t>(s.batch, 1, threads) : std::min<std::int64_t>(slices, threads);
  for (std::int64_t i = 0; i < n; ++i) {
    LoopPart part = by_rows ? slice_of(s, 0, 1, grain) : slice_of(s, i, n, grain);
    part.direction = direction;
    part.first_row = by_rows ? s.batch * i / n : 0;
    part.last_row = by_rows ? s.batch * (i + 1) / n : s.batch;
    split.parts.push_back(part);
  }
  if (!by_rows) split.meeting[static_cast<std::size_t>(direction)] = static_cast<int>(n);
}

}  // namespace

int loop_threads(const RecurrentShape& s, int threads) {
  const std::int64_t work = 2 * s.slots * s.steps * s.batch * s.directions * s.hidden * s.hidden;
  return static_cast<int>(std::clamp<std::int64_t>(work / plan::loop_work_of_a_thread, 1, threads));
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
