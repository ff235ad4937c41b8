// Shares the time loop of a recurrent layer among threads: directions first, then rows of the batch, which never meet; only where
// the batch is too small do threads take slices of the hidden units and meet after each step.
// Steps past the longest length of a thread's rows have no product; a row whose own length is shorter is multiplied with the
// others, and nothing reads what comes of it.
#pragma once

#include "core/parallel.hpp"
#include "cpu/recurrent_layout.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace everglow::cpu {

/// Elements of a padded row, of which the last may not exist.
struct LoopRange {
  std::int64_t first = 0, end = 0, padded = 0;
  std::int64_t count() const { return std::max<std::int64_t>(end - first, 0); }
  void clear(float* row) const { std::fill(row + first, row + padded, 0.0F); }
  /// Those that exist; the caller's row may have no more.
  void read(const Storage& storage, float* to, const void* from) const {
    storage.widen(storage.at(from, first), to + first, count());
  }
  void write(const Storage& storage, void* to, const float* from) const {
    storage.narrow(from + first, storage.at(to, first), count());
  }
};

/// One thread's share: rows of the batch, and blocks of units and a part of h, of one direction.
struct LoopPart {
  std::int64_t direction = 0;
  std::int64_t first_row = 0, last_row = 0;
  std::int64_t first_block = 0, last_block = 0;
  LoopRange units, state;  // of a row of c, of a row of h
  std::int64_t rows() const { return last_row - first_row; }
  std::int64_t first_unit() const { return first_block * cell_block; }
};

struct LoopSplit {
  std::vector<LoopPart> parts;       // one a thread, or all for one thread
  std::array<int, 2> meeting{1, 1};  // threads that meet after a step, of each direction
};

/// `grain` is the number of blocks that slices of units are multiples of.
LoopSplit split_loop(const RecurrentShape& shape, int threads, std::int64_t grain);
/// Threads that the work of a loop is worth.
int loop_threads(const RecurrentShape& shape, int threads);

/// Calls f(part, barrier) for each part. Where the runtime gives fewer threads than asked, one thread does all of it. f may
/// not throw: the other threads would wait for it for ever.
template <class F>
void run_loop(const RecurrentShape& shape, int threads, std::int64_t grain, const F& f) {
  const LoopSplit whole = split_loop(shape, 1, grain);  // here, since it allocates
  const auto alone = [&] {
    SpinBarrier nobody(1);
    for (const LoopPart& part : whole.parts) f(part, nobody);
  };
  const int wanted = loop_threads(shape, threads);
  if (wanted == 1) return alone();
  const LoopSplit split = split_loop(shape, wanted, grain);
  const auto team = static_cast<int>(split.parts.size());
  std::array<SpinBarrier, 2> barriers{SpinBarrier(split.meeting[0]), SpinBarrier(split.meeting[1])};
#pragma omp parallel num_threads(team)
  {
    if (omp_get_num_threads() == team) {
      const LoopPart& part = split.parts[static_cast<std::size_t>(omp_get_thread_num())];
      f(part, barriers[static_cast<std::size_t>(part.direction)]);
    } else {
#pragma omp single
      alone();
    }
  }
}

}  // namespace everglow::cpu
