// Writes beside the file, then renames.
#include "cli/written_file.hpp"

#include <everglow/error.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace everglow::cli {
namespace {

/// Why it could not be written; 0 where it was.
int write_to(const std::filesystem::path& file, std::string_view content) {
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  if (out) out << content;
  out.close();
  return out ? 0 : errno == 0 ? EIO : errno;
}

}  // namespace

void write_file(std::string_view layer, std::string_view argument, const std::string& file, std::string_view content) {
  const auto check = [&](int reason) {
    if (reason == 0) return;
    throw Error(ErrorCode::io, std::string(layer),
                fmt::format("{}: cannot write \"{}\": {}", argument, file, std::strerror(reason)));
  };
  std::error_code error;
  std::filesystem::path target = file;
  if (std::filesystem::exists(target, error) && !std::filesystem::is_regular_file(target, error))
    return check(write_to(target, content));
  if (std::filesystem::is_symlink(target, error)) {
    const std::filesystem::path named = std::filesystem::read_symlink(target, error);
    if (!error) target = std::filesystem::weakly_canonical(target.parent_path() / named, error);
  }
  std::filesystem::path part = target;
  part += fmt::format(".{}", getpid());
  int reason = write_to(part, content);
  if (reason == 0) {
    std::filesystem::rename(part, target, error);
    reason = error.value();
  }
  if (reason != 0) std::filesystem::remove(part, error);
  check(reason);
}

}  // namespace everglow::cli
