// Whole units of a size.
#pragma once

#include <cstdint>

namespace everglow {

/// Units that hold `size`, which is not negative.
constexpr std::int64_t divided_up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit; }
/// The least multiple of `unit` that is not less than `size`.
constexpr std::int64_t rounded_up(std::int64_t size, std::int64_t unit) { return divided_up(size, unit) * unit; }

}  // namespace everglow
