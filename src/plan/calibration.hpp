// Every number of the predictions that no data sheet gives, in one place, each with its source. "H200 table" is the table of
// measured products in docs/plan.md; "H200 floors" are latencies that one H200 showed. "assumed" means that nothing was measured.
#pragma once

#include <cstdint>
#include <string_view>

namespace everglow::plan::calibration {

/// The share of its tensor rate that a device reaches in large products.
struct MathShare {
  std::string_view device;
  double share;
};
inline constexpr MathShare math_shares[] = {
    {"v100-16", 0.80},    // assumed: near 100 of 125 TFLOP/s
    {"t4", 0.55},         // assumed: 70 W do not hold its clock
    {"a100-40", 0.86},    // 271 of 312 TFLOP/s measured (ml-engineering, maximum achievable matmul), less its last per cent
    {"a100-80", 0.86},    // the same
    {"rtx4090", 0.90},    // assumed: its power limit is seldom met with f32 accumulation
    {"l4", 0.60},         // assumed: 72 W do not hold its clock
    {"l40s", 0.75},       // assumed
    {"h100-sxm", 0.745},  // 794 of 989 is its best shape (ml-engineering); the usual shape as on the H200
    {"h100-pcie", 0.70},  // assumed: as h100-sxm, at 350 W
    {"h200", 0.745},      // H200 table: the middle of its large aligned rows
    {"b200", 0.75},       // 1745 of 2250 is its best shape (ml-engineering), less as on the H200
};
inline constexpr double cuda_core_share = 0.85;  // assumed: f32 and f64 products without tensor cores
inline constexpr double bandwidth_share = 0.88;  // H200: a copy moves 4.25 of 4.8 TB/s

inline constexpr double cpu_call_us = 0.3;  // two virtual cores: an empty run of a plan
inline constexpr double cpu_fork_us = 5.0;  // the same: waking OpenMP's threads and meeting at the end
inline constexpr double launch_us = 3.0;    // H200 table: what is left of 4096 x 1024 x 4096 and 16 x 4096 x 14336 beside the model

/// Rows of operands that are no multiples of 16 bytes: the library takes kernels without bulk copies. Of the aligned rate.
inline constexpr double misaligned_share = 0.345;     // H200 table: 33708 (8 bytes)
inline constexpr double misaligned_2_bytes = 0.18;    // H200 table: 1023 x 4097, where nothing but single elements can be loaded
inline constexpr double misaligned_no_tensor = 0.25;  // below sm_80 they run without tensor cores: 31.4 of 125 on a V100

/// A tile of m x n reads m + n elements for m n products of each k. Its rate falls with the square root of that ratio beside
/// 256 x 128: 128 x 128 0.87, 128 x 64 0.71, 64 x 64 0.61 (the order is that of NVIDIA's guide; the exponent is assumed).
inline constexpr double tile_exponent = 0.5;
inline constexpr std::int64_t least_split_k = 512;  // assumed: shorter parts of K do not fill a pipeline
inline constexpr std::int64_t most_splits = 16;

}  // namespace everglow::plan::calibration
