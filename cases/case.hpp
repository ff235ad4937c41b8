// The one reader of case lines: `layer key=value key=value ... # tag tag`. The lists in cases/*.cases are embedded in the
// programs that use them, and drive tests, gradients, benchmarks and the support table.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::cases {

struct Case {
  std::string line;
  std::string layer;
  std::map<std::string, std::string, std::less<>> fields;
  std::set<std::string, std::less<>> tags;

  bool has(std::string_view key) const { return fields.find(key) != fields.end(); }
  bool tagged(std::string_view tag) const { return tags.find(tag) != tags.end(); }
  /// The value of a key, or the default where the line has none. A value of another form throws std::invalid_argument.
  std::string text(std::string_view key, std::string_view otherwise) const;
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool flag(std::string_view key, bool otherwise = false) const;  // 0 or 1
};

/// GoogleTest shows the line of a case that failed.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.line; }
/// Throws std::invalid_argument for a line that is not of the form.
Case parse(std::string_view line);
/// The embedded cases of a layer that tests run, in the order of the files: all but those that are only timed (tags bench,
/// headline, users, card, cpu and cuda and no other), which are too large for the reference to run them often.
std::vector<Case> tested(std::string_view layer);
/// The embedded cases of all layers that have a tag and that a CPU can time (not those with the tag cuda and without cpu), or a
/// card (not those with the tag cpu and without cuda).
std::vector<Case> timed(std::string_view tag, DeviceKind device = DeviceKind::cpu);
/// The embedded cases of all layers that have a tag, in the order of the files.
std::vector<Case> tagged(std::string_view tag);

}  // namespace everglow::cases
