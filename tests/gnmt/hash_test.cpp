// The hash and the random numbers are those that others publish: a split or an epoch must never change with a compiler.
#include "gnmt/hash.hpp"

#include <gtest/gtest.h>

namespace everglow::gnmt {
namespace {

// From the authors' page of FNV (isthe.com/chongo/tech/comp/fnv, test vectors of 64 bits).
TEST(Hash, fnv1a_of_known_texts_sanitize) {
  EXPECT_EQ(fnv1a(""), 0xCBF29CE484222325U);
  EXPECT_EQ(fnv1a("a"), 0xAF63DC4C8601EC8CU);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171F73967E8U);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}

// The first numbers of Vigna's splitmix64.c from 1234567.
TEST(Hash, split_mix_of_a_known_seed_sanitize) {
  SplitMix64 random(1234567);
  for (const std::uint64_t expected :
       {6457827717110365317U, 3203168211198807973U, 9817491932198370423U, 4593380528125082431U, 16408922859458223821U})
    EXPECT_EQ(random.next(), expected);
  EXPECT_EQ(mixed(1234567), 6457827717110365317U);
  for (int i = 0; i < 1000; ++i) {
    const double unit = random.unit();
    EXPECT_TRUE(unit >= 0 && unit < 1) << unit;
  }
}

}  // namespace
}  // namespace everglow::gnmt
