// Two files of benchmark records side by side.
#pragma once

#include <string>

namespace everglow::cli {

/// Prints a line for each row that both files have, with the medians and how many times faster the second is. Returns 1 where a
/// row became slower by more than `threshold` per cent and its spread does not explain it, else 0. Throws Error(io) for a file that
/// cannot be read, with file and line, and Error(invalid_argument) where the files have no row in common.
int compare_records(const std::string& before, const std::string& after, double threshold);

}  // namespace everglow::cli
