// Loops that show what a core can do with the vectors of an instruction set. Plain structs and functions only: the source beside
// it is compiled once for each set.
#pragma once

#include <cstddef>

namespace everglow::cli {

struct ProbeLoops {
  std::size_t unit;   // floats that `read` takes at a time
  std::size_t flops;  // of one round of `multiply`
  /// Reads floats, a multiple of `unit`, some times; what it returns keeps the compiler from leaving it out.
  int (*read)(const float* data, std::size_t floats, std::size_t times);
  /// Multiply-adds that depend on no memory.
  float (*multiply)(std::size_t rounds);
};

namespace portable {
extern const ProbeLoops probe_loops;
}
namespace avx2 {
extern const ProbeLoops probe_loops;
}
namespace avx512 {
extern const ProbeLoops probe_loops;
}

}  // namespace everglow::cli
