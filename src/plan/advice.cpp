// Searches the candidates of one dimension.
#include "plan/advice.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace everglow::plan {

std::vector<std::int64_t> aligned_sizes(std::int64_t from, std::int64_t element) {
  std::vector<std::int64_t> out;
  for (std::int64_t bytes = 4; bytes <= 128; bytes *= 2) {
    const std::int64_t unit = std::max<std::int64_t>(bytes / element, 1);
    const std::int64_t to = (from + unit - 1) / unit * unit;
    if (to > from && (out.empty() || out.back() != to)) out.push_back(to);
  }
  return out;
}

std::vector<std::int64_t> larger_batches(std::int64_t from) {
  constexpr std::int64_t fine = 512, knee = 1024;
  std::vector<std::int64_t> out;
  const std::int64_t most = std::max(knee, std::min(8 * from, from + 4096));
  for (std::int64_t to = from + 8 - from % 8; to <= most; to += to < fine ? 8 : 64 - to % 64) out.push_back(to);
  return out;
}

void advise(ExplanationAdvice wanted, const std::vector<std::int64_t>& candidates, const TimeAt& time_at,
            std::vector<ExplanationAdvice>& out) {
  const double before = time_at(wanted.from);
  if (before <= 0 || candidates.empty()) return;
  std::vector<double> after;
  for (const std::int64_t to : candidates) after.push_back(time_at(to));
  const double best = before / *std::min_element(after.begin(), after.end());
  if (best < least_gain) return;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const double gain = before / after[i];
    if (gain < least_gain || gain < share_of_best * best) continue;
    wanted.to = candidates[i];
    wanted.time_us_before = before, wanted.time_us_after = after[i], wanted.gain = gain;
    out.push_back(std::move(wanted));
    return;
  }
}

void sort_best_first(std::vector<ExplanationAdvice>& advice) {
  // Gains that people would read as the same keep their order: a size stands before the stride that does as much.
  const auto shown = [](const ExplanationAdvice& a) { return std::llround(100 * a.gain); };
  std::stable_sort(advice.begin(), advice.end(), [&](const auto& a, const auto& b) { return shown(a) > shown(b); });
}

}  // namespace everglow::plan
