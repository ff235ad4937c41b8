// Files of benchmark records as one page.
#pragma once

#include <string>
#include <vector>

namespace everglow::cli {

/// Writes one self-contained page of HTML: for each layer and peer how often we are faster and by how much, the rows of each
/// problem as bars, and the rooflines of the devices with a point for each row. Rows are compared within one file alone, whose runs
/// took turns. Throws Error(io) for a file that cannot be read, with file and line, or written, and Error(invalid_argument) without
/// any record.
void write_report(const std::vector<std::string>& files, const std::string& html);

}  // namespace everglow::cli
