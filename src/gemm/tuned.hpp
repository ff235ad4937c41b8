// Choices that were measured, in a file that outlives the process. Nothing here knows what is chosen: a key says what for, words
// say what.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace everglow::tuned {

struct Choice {
  std::array<std::uint64_t, 8> words{};
  double time_us = 0, first_us = 0;  // measured: of the choice, and of what would have been taken without
  friend bool operator==(const Choice&, const Choice&) = default;
};
/// Keys are one line without tabs.
using Choices = std::map<std::string, Choice>;

/// The file that EVERGLOW_TUNED names; else $XDG_CACHE_HOME/everglow/tuned.txt, else ~/.cache/everglow/tuned.txt. Empty, for no
/// file, where the variable is set and empty or no place is known.
std::filesystem::path file();

/// The choices whose lines are whole; none where there is no file. A damaged line costs itself alone.
Choices read(const std::filesystem::path& file);

/// Adds to what the file holds, by a file beside it and a rename, so that no reader sees half of it; what other processes add at the
/// same moment may be lost. A link stays; a device (/dev/null) or pipe is left alone. Throws Error(io).
void add(const std::filesystem::path& file, const Choices& choices);

}  // namespace everglow::tuned
