// Bars on a terminal: how far a list of work is done. Nothing is shown elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace everglow::cli {

/// Columns of the terminal, 80 where `out` is none.
int columns_of(std::FILE* out);
/// `cells` characters, the first `part` (0 ... 1) of them filled.
std::string bar(double part, int cells);
/// "label 12 of 340 ████░░░░ text", cut to fit the columns; characters of more than one byte only in the bar.
std::string count_line(std::string_view label, std::int64_t done, std::int64_t total, std::string_view text, int columns);

/// One line of a terminal that counts; erased when it goes.
class CountBar {
 public:
  CountBar(std::FILE* out, std::string_view label, std::int64_t total);
  ~CountBar();
  CountBar(const CountBar&) = delete;
  CountBar& operator=(const CountBar&) = delete;
  void show(std::int64_t done, std::string_view text);
  void erase();  ///< before other output

 private:
  std::FILE* out_;
  bool terminal_;
  bool open_ = false;
  std::string label_;
  std::int64_t total_;
};

}  // namespace everglow::cli
