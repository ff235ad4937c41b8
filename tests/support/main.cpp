// Prints the seed of the random inputs before the tests run, so that a failure can be repeated.
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <iostream>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::cout << "seed of random inputs: " << everglow::test::seed() << " (EVERGLOW_TEST_SEED)\n";
  return RUN_ALL_TESTS();
}
