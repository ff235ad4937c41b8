// The runtime of OpenMP reads its environment while it is loaded, so a bound must be there before the tool starts.
#include "cli/waits.hpp"

#include <unistd.h>

#include <cstdlib>

namespace everglow::cli {

void bound_waits(char** arguments) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv("GOMP_SPINCOUNT", "3000", 0) != 0) return;
  execv("/proc/self/exe", arguments);  // where that cannot be had, the tool goes on as it is
}

}  // namespace everglow::cli
