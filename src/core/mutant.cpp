// Which mutant lives, if any. Part of the objects that tests/mutants.py runs, not of the library.
#include "core/mutant.hpp"

#include <cstdlib>

namespace everglow {
namespace {

std::uint64_t hash_of_wish() {
  const char* wish = std::getenv("EVERGLOW_MUTANT");
  std::uint64_t hash = 14695981039346656037U;
  for (; wish != nullptr && *wish != 0; ++wish) hash = (hash ^ static_cast<unsigned char>(*wish)) * 1099511628211U;
  return hash;
}

}  // namespace

const std::uint64_t mutant_alive = hash_of_wish();

}  // namespace everglow
