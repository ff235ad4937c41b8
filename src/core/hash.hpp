// The hash behind the keys of packed weights.
#pragma once

#include <cstdint>
#include <string_view>

namespace everglow {

/// FNV-1a, 64 bits. Never 0, which stands for weights that were never packed.
inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash == 0 ? 1 : hash;
}

}  // namespace everglow
