// The smallest change of a size that reaches most of what the best change would gain.
#pragma once

#include <everglow/plan.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace everglow::plan {

/// Time for the useful rows of today where the size is `to`.
using TimeAt = std::function<double(std::int64_t to)>;

inline constexpr double least_gain = 1.03;  // advice below it is not worth a change
inline constexpr double share_of_best = 0.95;

/// Larger sizes that make rows of `from` elements multiples of 4, 8, ... 128 bytes, in order.
std::vector<std::int64_t> aligned_sizes(std::int64_t from, std::int64_t element);
/// Larger batches: every 8 rows up to 512, then every 64, up to eight times as many rows or 1024.
std::vector<std::int64_t> larger_batches(std::int64_t from);

/// Appends advice where a candidate gains at least 3 %. `time_at(from)` is the time today.
void advise(ExplanationAdvice wanted, const std::vector<std::int64_t>& candidates, const TimeAt& time_at,
            std::vector<ExplanationAdvice>& out);
void sort_best_first(std::vector<ExplanationAdvice>& advice);

}  // namespace everglow::plan
