// The parts of dispatch.hpp that do not depend on a layer.
#include "core/dispatch.hpp"

#include "core/check.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace everglow {

namespace {

/// EVERGLOW_THREADS, read once; 0: none.
int wished_threads() {
  static const int threads = [] {
    const char* wish = std::getenv("EVERGLOW_THREADS");
    if (wish == nullptr || *wish == 0) return 0;
    int count = 0;
    const char* end = wish + std::strlen(wish);
    const auto result = std::from_chars(wish, end, count);
    if (result.ec != std::errc() || result.ptr != end || count < 1 || count > most_threads)
      throw Error(ErrorCode::invalid_argument, "EVERGLOW_THREADS",
                  text("expected a count of 1 ... ", most_threads, " (for example EVERGLOW_THREADS=2), got \"", wish, '"'));
    return count;
  }();
  return threads;
}

}  // namespace

int threads_of(const DeviceDescription& device) {
  require(device.cores >= 1, ErrorCode::invalid_argument, "device", "cores: expected 1 or more, got ", device.cores);
  return wished_threads() > 0 ? wished_threads() : std::min(device.cores, most_threads);
}

int default_threads() { return threads_of(Device::cpu()); }

Isa isa_of(const DeviceDescription& device) {
  if (device.device.kind != DeviceKind::cpu) return chosen_isa();
  return std::min(best_isa(), parse_isa(device.isa, "device"));
}

void no_row(std::string_view layer, const std::vector<ExplanationRow>& rows) {
  std::string reasons;
  for (const auto& row : rows) reasons += text("\n  ", row.name, ": ", row.reason);
  throw Error(ErrorCode::unsupported, text(layer, ".plan"), text("expected a row that accepts, got none:", reasons));
}

void require_known_rows(std::string_view layer, const std::vector<std::string>& known, const PlanOptions& options) {
  const auto check = [&](const std::string& wish, std::string_view option) {
    if (std::find(known.begin(), known.end(), wish) != known.end()) return;
    std::string list;
    for (const auto& row : known) list += text(list.empty() ? "" : ", ", row);
    throw Error(ErrorCode::invalid_argument, text(layer, ".plan"), text(option, ": expected one of ", list, ", got \"", wish, '"'));
  };
  if (!options.force.empty()) check(options.force, "force");
  for (const auto& wish : options.exclude) check(wish, "exclude");
  const std::string where = text(layer, ".plan");
  if (options.threads < 0 || options.threads > most_threads)
    throw Error(ErrorCode::invalid_argument, where, text("threads: expected 0 ... ", most_threads, ", got ", options.threads));
  const bool tile = (options.tile_m == 0 && options.tile_n == 0) || (options.tile_m > 0 && options.tile_n > 0);
  if (!tile || std::max(options.tile_m, options.tile_n) > most_tile)
    throw Error(
        ErrorCode::invalid_argument, where,
        text("tile: expected two sizes of 1 ... ", most_tile, " (for example 256x128), got ", options.tile_m, 'x', options.tile_n));
  if (options.math > Math::tf32)
    throw Error(ErrorCode::invalid_argument, where, text("math: expected ieee or tf32, got ", static_cast<int>(options.math)));
}

}  // namespace everglow
