// Philox4x32-10: the known answers of Random123, and the helpers of dropout.
#include "core/philox.hpp"

#include <gtest/gtest.h>

namespace everglow {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswersOfRandom123_sanitize) {  // kat_vectors, philox4x32 with 10 rounds: zeros, ones, digits of pi
  EXPECT_EQ(philox(0, Words{0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, Words{~0U, ~0U, ~0U, ~0U}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, Words{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CountersOf64BitsAreTheLowWords) {
  EXPECT_EQ(philox(5, 0x123456789ABCDEF0ULL), philox(5, Words{0x9ABCDEF0, 0x12345678, 0, 0}));
  EXPECT_EQ(philox(5, ~0ULL), philox(5, Words{~0U, ~0U, 0, 0}));
}

TEST(Philox, DropoutHelpers) {
  EXPECT_EQ(dropout_threshold(0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), 1ULL << 31);
  EXPECT_EQ(dropout_threshold(1), 1ULL << 32);
  EXPECT_EQ(dropout_counters_of(0), 0U);
  EXPECT_EQ(dropout_counters_of(1), 1U);
  EXPECT_EQ(dropout_counters_of(4), 1U);
  EXPECT_EQ(dropout_counters_of(5), 2U);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(dropout_keeps(1, 2, i, 0));
    EXPECT_FALSE(dropout_keeps(1, 2, i, 1ULL << 32));
    const std::uint32_t word = philox(1, 2 + i / 4)[i % 4];
    EXPECT_TRUE(dropout_keeps(1, 2, i, word));
    EXPECT_FALSE(dropout_keeps(1, 2, i, std::uint64_t{word} + 1));
  }
}

}  // namespace
}  // namespace everglow
