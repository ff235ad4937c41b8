// A hash of bytes and a source of random numbers that give the same 64 bits with every compiler and standard library: splits,
// epochs and checkpoints rest on them.
#pragma once

#include <cstdint>
#include <string_view>

namespace everglow::gnmt {

inline constexpr std::uint64_t fnv1a_start = 0xCBF29CE484222325U;

/// FNV-1a; `hash` is the hash of the bytes before these.
inline std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = fnv1a_start) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

/// SplitMix64 (Steele, Lea and Flood 2014): a counter whose values are mixed so that every bit of one reaches every bit of the
/// other.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  ///< 0 <= x < 1

 private:
  std::uint64_t state_;
};

/// A well mixed 64-bit number.
inline std::uint64_t mixed(std::uint64_t x) { return SplitMix64(x).next(); }

}  // namespace everglow::gnmt
