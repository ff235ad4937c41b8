// FNV-1a, 64 bits: of text behind the keys of packed weights, of words behind those of a cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace everglow {

inline constexpr std::uint64_t hash_of_nothing = 0xcbf29ce484222325U;
constexpr std::uint64_t hash_with(std::uint64_t hash, std::uint64_t value) { return (hash ^ value) * 0x100000001b3U; }

/// Never 0, which stands for weights that were never packed.
inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = hash_of_nothing;
  for (const char c : text) hash = hash_with(hash, static_cast<unsigned char>(c));
  return hash == 0 ? 1 : hash;
}
/// A word at a time.
inline std::uint64_t hash_of(std::span<const std::int64_t> words) {
  std::uint64_t hash = hash_of_nothing;
  for (const std::int64_t word : words) hash = hash_with(hash, static_cast<std::uint64_t>(word));
  return hash;
}

}  // namespace everglow
