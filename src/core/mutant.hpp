// Mutants: places whose sign or term can be changed at run time, one at a time, to prove that the tests notice (tests/mutants.py).
// They live only in objects that the tests compile with EVERGLOW_MUTANTS; elsewhere they vanish while compiling. All is static,
// because code compiled for an instruction set may share no function with other code.
#pragma once

#include <cstdint>

namespace everglow {

/// "layer.what_is_wrong", unique; hashed while compiling, so that asking for it is cheap.
struct MutantName {
  std::uint64_t hash = 14695981039346656037U;
  consteval MutantName(const char* name) {
    for (; *name != 0; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 1099511628211U;  // FNV-1a
  }
};

#ifdef EVERGLOW_MUTANTS
extern const std::uint64_t mutant_alive;  ///< the hash of the name in EVERGLOW_MUTANT
[[maybe_unused]] static bool mutant(MutantName name) { return name.hash == mutant_alive; }
#else
[[maybe_unused]] static constexpr bool mutant(MutantName) { return false; }
#endif

/// The value, or with the mutant its opposite.
template <class T>
static constexpr T flipped(MutantName name, T value) {
  return mutant(name) ? -value : value;
}
/// The value, or with the mutant zero.
template <class T>
static constexpr T dropped(MutantName name, T value) {
  return mutant(name) ? T{} : value;
}

}  // namespace everglow
