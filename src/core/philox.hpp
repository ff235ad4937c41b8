// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter and a key give four words, so
// every element of a dropout mask can be drawn alone, in any order, on any device.
#pragma once

#include <array>
#include <cstdint>

namespace everglow {

/// The function of the paper, with a counter of 128 bits, low word first.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> c) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0], b = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9U, k1 += 0xBB67AE85U;
  }
  return c;
}

/// The counters that dropout uses: 64 bits.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter) {
  return philox(key, std::array{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0U, 0U});
}

/// Words below this are dropped: floor(p · 2^32), at most 2^32 (which drops everything).
constexpr std::uint64_t dropout_threshold(double probability) { return static_cast<std::uint64_t>(probability * 4294967296.0); }

/// Counters that a mask of n elements uses.
constexpr std::uint64_t dropout_counters_of(std::int64_t elements) { return (static_cast<std::uint64_t>(elements) + 3) / 4; }

/// Element i of a mask is kept where its word is at least the threshold.
constexpr bool dropout_keeps(std::uint64_t seed, std::uint64_t offset, std::uint64_t i, std::uint64_t threshold) {
  return philox(seed, offset + i / 4)[i % 4] >= threshold;
}

}  // namespace everglow
