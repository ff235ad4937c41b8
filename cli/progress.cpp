// Lines and bars of a training run.
#include "cli/progress.hpp"

#include "cli/bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace everglow::cli {
namespace {

// A plain line is read later, in a file: one in ten seconds is enough there.
constexpr double seconds_between_lines = 10;

}  // namespace

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::lround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::ptrdiff_t first = n < 0 ? 1 : 0;
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > first; i -= 3) digits.insert(static_cast<std::size_t>(i), 1, ',');
  return digits;
}

std::string bar_line(const gnmt::Progress& p, int columns) {
  const std::string head = fmt::format("epoch {} {:3.0f} % ", p.epoch, 100 * p.part);
  const std::string tail =
      fmt::format(" loss {:.3f}  {} tok/s  padding {:.0f} %  norm {:.2f}  {} left", p.loss,
                  grouped(std::llround(p.tokens_per_second)), 100 * p.padding, p.gradient_norm, clock_text(p.seconds_left));
  const int room = columns - 1 - static_cast<int>(head.size() + tail.size());
  return head + (room >= 4 ? bar(p.part, std::min(room, 30)) : "") + tail;
}

std::string plain_line(const gnmt::Progress& p) {
  const std::string scale = p.loss_scale > 0 ? fmt::format("loss scale {:.0f}, {} skipped, ", p.loss_scale, p.skipped) : "";
  return fmt::format("epoch {} step {} ({:.0f} %): loss {:.3f}, {} tok/s, padding {:.0f} %, norm {:.2f}, rate {:.2g}, {}{} left",
                     p.epoch, p.step, 100 * p.part, p.loss, grouped(std::llround(p.tokens_per_second)), 100 * p.padding,
                     p.gradient_norm, p.learning_rate, scale, clock_text(p.seconds_left));
}

std::string validation_line(const gnmt::Progress& p) {
  if (p.valid_lines == 0)
    return fmt::format("step {} after {}: saved; there are no validation pairs", p.step, clock_text(p.seconds));
  return fmt::format("step {} after {}: validation loss {:.3f}, BLEU {:.2f}, exact {:.1f} %", p.step, clock_text(p.seconds),
                     p.valid_loss, p.valid_bleu, p.valid_exact);
}

ProgressPrinter::ProgressPrinter(std::FILE* out) : out_(out), terminal_(isatty(fileno(out)) != 0) {}

void ProgressPrinter::operator()(const gnmt::Progress& progress) {
  const bool trained = progress.tokens_per_second > 0;
  if (progress.validated) {
    finish();
    if (!terminal_ && trained) fmt::print(out_, "{}\n", plain_line(progress));
    fmt::print(out_, "{}\n", validation_line(progress));
    next_line_ = progress.seconds + seconds_between_lines;
  } else if (terminal_) {
    // Back to the first column, the line, and the rest of the old line erased.
    fmt::print(out_, "\r{}\x1b[K", bar_line(progress, columns_of(out_)));
    open_ = true;
  } else if (progress.seconds >= next_line_) {
    fmt::print(out_, "{}\n", plain_line(progress));
    next_line_ = progress.seconds + seconds_between_lines;
  }
  std::fflush(out_);
}

void ProgressPrinter::finish() {
  if (open_) fmt::print(out_, "\n");
  open_ = false;
}

}  // namespace everglow::cli
