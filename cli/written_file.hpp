// Files that the tool writes whole: what stood there before stays until the new content is complete.
#pragma once

#include <string>
#include <string_view>

namespace everglow::cli {

/// Writes `content` to `file`: to a file beside it that then takes its name, so that a reader, or a run that is cut off, never
/// meets half of it. What a link names is replaced, not the link; a pipe or device is written as it is. Throws Error(io) that names
/// `layer`, `argument` and the file, and leaves what was there.
void write_file(std::string_view layer, std::string_view argument, const std::string& file, std::string_view content);

}  // namespace everglow::cli
