// Reads the flags of everglow_bench.
#include "bench/arguments.hpp"

#include <unistd.h>

#include <charconv>
#include <stdexcept>

namespace everglow::bench {
namespace {

constexpr double mebibyte = 1024 * 1024;

/// Twice the last cache, so that what one set left there is gone when its turn comes again; 64 ... 256 MiB.
double default_rotation() {
  const long cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp(2 * static_cast<double>(cache) / mebibyte, 64.0, 256.0);
}

double number(const std::string& flag, const std::string& text, double low, double high, bool whole) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = result.ec == std::errc() && result.ptr == text.data() + text.size();
  if (!read || !(value >= low && value <= high) || (whole && value != static_cast<double>(static_cast<std::int64_t>(value))))
    throw std::invalid_argument(
        flag + ": expected a " + (whole ? "whole " : "") + "number from " + std::to_string(static_cast<std::int64_t>(low)) +
        " to " + std::to_string(static_cast<std::int64_t>(high)) + ", got \"" + text + "\"; for example " + flag + " 2");
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

void set_value(Arguments& a, const std::string& flag, const std::string& value) {
  if (flag == "--out")
    a.out = value;
  else if (flag == "--filter")
    a.filter = value;
  else if (flag == "--case")
    a.cases.push_back(value);
  else if (flag == "--direction")
    a.direction = value;
  else if (flag == "--rows")
    a.settings.rows = split(value);
  else if (flag == "--threads")
    a.settings.threads = static_cast<int>(number(flag, value, 1, 1024, true));
  else if (flag == "--seconds")
    a.timing.seconds = number(flag, value, 0, 3600, false);
  else if (flag == "--seed")
    a.settings.seed = static_cast<std::uint64_t>(number(flag, value, 0, 9e15, true));
  else
    a.settings.rotate_bytes = static_cast<std::int64_t>(number(flag, value, 0, 65536, false) * mebibyte);
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words) {
  static const std::vector<std::string> with_value{"--out",     "--filter",  "--case", "--direction", "--rows",
                                                   "--threads", "--seconds", "--seed", "--rotate"};
  Arguments a;
  a.settings.threads = DeviceDescription(Device::cpu()).cores;
  a.settings.rotate_bytes = static_cast<std::int64_t>(default_rotation() * mebibyte);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& flag = words[i];
    if (flag == "--help" || flag == "-h") {
      a.help = true;
    } else if (flag == "--list") {
      a.list = true;
    } else if (std::find(with_value.begin(), with_value.end(), flag) != with_value.end()) {
      if (i + 1 == words.size() || words[i + 1].empty()) throw std::invalid_argument(flag + ": expected a value after it");
      set_value(a, flag, words[++i]);
    } else {
      std::string known = "--list, --help";
      for (const std::string& name : with_value) known += ", " + name;
      throw std::invalid_argument("expected one of " + known + ", got \"" + flag + "\"; for example --filter linear");
    }
  }
  return a;
}

std::string usage() {
  return "everglow_bench [FLAG VALUE]...: times every CPU row of the layers beside the reference, in turn within one run\n"
         "  --out FILE        write a line of JSON for each row (docs/bench.md)\n"
         "  --filter TEXT     only cases whose line holds the text\n"
         "  --case LINE       time this case instead of the built-in ones; may be given again\n"
         "  --direction NAME  forward, backward, forward_backward (loss), run (pointwise) or step (adam)\n"
         "  --rows A,B        only these rows; without the reference there is no ratio\n"
         "  --threads N       CPU threads (all cores)\n"
         "  --seconds S       time for the rows of one direction together (1); slow rows take at least five rounds\n"
         "  --rotate MIB      rotate over tensors of so many MiB (twice the last cache, 64 ... 256)\n"
         "  --seed N          of the random inputs (1)\n"
         "  --list            show the cases and stop\n";
}

}  // namespace everglow::bench
