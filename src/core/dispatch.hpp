// Ordered kernel tables: a row says whether it accepts a query and why not; the first that accepts runs. Nothing registers
// itself: src/ops/<layer>/table.cpp lists the rows.
#pragma once

#include <everglow/plan.hpp>

#include "core/isa.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace everglow {

/// What a row says of a query: why it declines, or, where it is taken, how it computes.
struct Verdict {
  bool accepted = true;
  std::string reason;
};
inline Verdict accept() { return {}; }
template <class... Parts>
Verdict decline(const Parts&... parts) {
  return {false, text(parts...)};
}

/// Bytes that a row needs for a query.
struct Footprint {
  std::size_t workspace = 0;
  std::size_t reserve = 0;
  std::size_t packed = 0;
};

/// What a row is asked: the description, the largest sizes, and where it would run.
template <class Description, class Sizes>
struct Query {
  Description description;
  Sizes sizes;
  DeviceDescription device;
  PlanOptions options;
  int threads = 1;
  Isa isa = Isa::portable;
};

inline constexpr int most_threads = 4096;  ///< above it a count is taken for a mistake: threads that cannot start end a process

inline constexpr std::int64_t most_tile = 65536;

int threads_of(const DeviceDescription& device);  ///< EVERGLOW_THREADS, else the cores of the description
Isa isa_of(const DeviceDescription& device);      ///< what the description names, lowered to what machine and build offer

template <class Description, class Sizes>
Query<Description, Sizes> make_query(const Description& description, const Sizes& sizes, const DeviceDescription& device,
                                     const PlanOptions& options) {
  const int threads = options.threads > 0 ? options.threads : threads_of(device);
  return {description, sizes, device, options, threads, isa_of(device)};
}

template <class Row>
struct Choice {
  const Row* row = nullptr;
  std::vector<ExplanationRow> rows;
};

[[noreturn]] void no_row(std::string_view layer, const std::vector<ExplanationRow>& rows);
void require_known_rows(std::string_view layer, const std::vector<std::string>& known, const PlanOptions& options);

/// Asks every row in order; the first that accepts and is neither excluded nor beside a forced one is taken. Where none accepts, a
/// plan for a device that is not present still explains: its row is null.
template <class Row, class AnyQuery>
Choice<Row> choose(std::string_view layer, std::span<const Row* const> table, const AnyQuery& query) {
  std::vector<std::string> known;
  for (const Row* row : table) known.emplace_back(row->name);
  require_known_rows(layer, known, query.options);
  Choice<Row> choice;
  for (const Row* row : table) {
    Verdict verdict = row->accepts(query);
    const auto& skip = query.options.exclude;
    if (verdict.accepted && std::find(skip.begin(), skip.end(), row->name) != skip.end()) verdict = decline("excluded by option");
    if (verdict.accepted && !query.options.force.empty() && query.options.force != row->name)
      verdict = decline(query.options.force, " is forced");
    const bool taken = verdict.accepted && choice.row == nullptr;
    if (taken) choice.row = row;
    if (verdict.accepted && !taken) verdict.reason = text("accepts, but ", choice.row->name, " comes first");
    choice.rows.push_back({std::string(row->name), taken, verdict.reason});
  }
  if (choice.row == nullptr && query.device.present) no_row(layer, choice.rows);
  return choice;
}

/// What the taken row needs; nothing where none was taken.
template <class Row, class AnyQuery>
Footprint footprint_of(const Choice<Row>& choice, const AnyQuery& query) {
  return choice.row != nullptr ? choice.row->footprint(query) : Footprint{};
}

/// The parts of an explanation that every layer fills in the same way.
template <class Row, class AnyQuery>
Explanation explain_choice(std::string_view layer, const Choice<Row>& choice, const AnyQuery& query, DType dtype) {
  Explanation out;
  out.layer = layer;
  out.device = query.device.name;
  out.dtype = name(dtype);
  out.figures = query.device.figures.source;
  if (choice.row != nullptr) out.kernel = choice.row->name;
  out.rows = choice.rows;
  if (query.options.math == Math::tf32 && query.device.device.kind == DeviceKind::cpu)
    for (ExplanationRow& row : out.rows)
      if (row.taken) row.reason += text(row.reason.empty() ? "" : "; ", "math = tf32 is ieee on a CPU");
  return out;
}

/// A plan of a device that this machine does not have explains, but does not run; a run's stream is one of the plan's device.
inline void require_runnable(std::string_view where, const DeviceDescription& device, const Stream& stream) {
  if (!device.present)
    throw Error(ErrorCode::device, where, text("expected a device that is present, got a plan for ", device.name, " by name"));
  if (stream.device != device.device)
    throw Error(ErrorCode::type_mismatch, where,
                text("stream: expected one of ", to_string(device.device), ", got one of ", to_string(stream.device)));
}

}  // namespace everglow
