// The flags of everglow_bench.
#pragma once

#include "bench/measure.hpp"

#include <string>
#include <vector>

namespace everglow::bench {

struct Arguments {
  Settings settings;
  Timing timing;
  std::string out, filter, direction;
  std::vector<std::string> cases;  // lines given with --case; empty: those tagged bench
  bool list = false, help = false;
};

/// Throws std::invalid_argument that says which flag, what is allowed, and an example.
Arguments parse_arguments(const std::vector<std::string>& words);
std::string usage();

}  // namespace everglow::bench
