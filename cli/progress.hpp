// Shows how a training run gets on: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <everglow/gnmt/trainer.hpp>

#include <cstdio>
#include <string>

namespace everglow::cli {

/// "1:05" or "2:03:10".
std::string clock_text(double seconds);
/// 1234567 as "1,234,567".
std::string grouped(std::int64_t n);
/// The bar's line for a terminal of that many columns, and the plain line.
std::string bar_line(const gnmt::Progress& progress, int columns);
std::string plain_line(const gnmt::Progress& progress);
std::string validation_line(const gnmt::Progress& progress);

class ProgressPrinter {
 public:
  explicit ProgressPrinter(std::FILE* out);
  void operator()(const gnmt::Progress& progress);
  void finish();  ///< leaves the bar's line

 private:
  std::FILE* out_;
  bool terminal_;
  bool open_ = false;     // the bar stands on the current line
  double next_line_ = 0;  // seconds of the run at which the next plain line is due
};

}  // namespace everglow::cli
