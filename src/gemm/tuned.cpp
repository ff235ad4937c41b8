// A line for each choice: its key, times, words and a hash of all that, with tabs between.
#include "gemm/tuned.hpp"

#include <everglow/error.hpp>

#include "core/hash.hpp"
#include "core/text.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace everglow::tuned {
namespace {

std::string body_of(const std::string& key, const Choice& choice) {
  std::ostringstream out;
  out.precision(9);
  out << key << '\t' << choice.time_us << '\t' << choice.first_us << std::hex;
  for (const std::uint64_t word : choice.words) out << '\t' << word;
  return out.str();
}

std::optional<std::pair<std::string, Choice>> parsed(const std::string& line) {
  const std::size_t end = line.rfind('\t'), key_end = line.find('\t');
  if (end == std::string::npos || end == key_end) return {};
  std::uint64_t hash = 0;
  if (!(std::istringstream(line.substr(end + 1)) >> std::hex >> hash) || hash != hash_of(line.substr(0, end))) return {};
  Choice choice;
  std::istringstream in(line.substr(key_end, end - key_end));
  in >> choice.time_us >> choice.first_us >> std::hex;
  for (std::uint64_t& word : choice.words) in >> word;
  if (!in) return {};
  return std::pair(line.substr(0, key_end), choice);
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  throw Error(ErrorCode::io, "tune", text(file.string(), ": expected a file that can be written, got ", why));
}

}  // namespace

std::filesystem::path file() {
  if (const char* named = std::getenv("EVERGLOW_TUNED")) return named;
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  // A relative path is no place for a cache, by the XDG rules.
  if (const auto cache = set("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "everglow" / "tuned.txt";
  if (const auto home = set("HOME"); home.is_absolute()) return home / ".cache" / "everglow" / "tuned.txt";
  return {};
}

Choices read(const std::filesystem::path& file) {
  Choices out;
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (auto found = parsed(line)) out.insert_or_assign(std::move(found->first), found->second);
  return out;
}

void add(const std::filesystem::path& file, const Choices& choices) {
  static std::mutex lock;  // the threads of a process have one name for the part
  const std::lock_guard guard(lock);
  std::error_code error;
  const auto kind = std::filesystem::status(file, error).type();
  if (kind == std::filesystem::file_type::character || kind == std::filesystem::file_type::fifo) return;  // /dev/null keeps nothing
  const std::filesystem::path named = std::filesystem::canonical(file, error);
  const std::filesystem::path& target = error ? file : named;  // what a link names is replaced, not the link
  Choices all = read(target);
  for (const auto& [key, choice] : choices) all.insert_or_assign(key, choice);
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  std::filesystem::path part = target;
  part += text('.', getpid());
  std::ofstream out(part);
  for (const auto& [key, choice] : all) {
    const std::string body = body_of(key, choice);
    out << body << '\t' << std::hex << hash_of(body) << '\n';
  }
  out.close();
  if (!out) {
    std::filesystem::remove(part, error);
    fail(file, "a fault of its folder");
  }
  std::filesystem::rename(part, target, error);
  if (!error) return;
  const std::string why = error.message();
  std::filesystem::remove(part, error);
  fail(file, why);
}

}  // namespace everglow::tuned
