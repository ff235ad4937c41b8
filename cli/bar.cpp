// Draws bars. The escape code erases what an older, longer line left.
#include "cli/bar.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace everglow::cli {

int columns_of(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar(double part, int cells) {
  const int full = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * cells));
  std::string out;
  for (int i = 0; i < cells; ++i) out += i < full ? "█" : "░";
  return out;
}

std::string count_line(std::string_view label, std::int64_t done, std::int64_t total, std::string_view text, int columns) {
  const int most = std::max(columns - 1, 0);  // the last column would break the line on some terminals
  const std::string head = fmt::format("{} {} of {} ", label, done, total).substr(0, static_cast<std::size_t>(most));
  int room = most - static_cast<int>(head.size());
  const int cells = room >= 4 ? std::min(room, 20) : 0;
  std::string out = head + bar(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1, cells);
  if (cells > 0) room -= cells + 1;
  if (room > 0) out += (cells > 0 ? " " : "") + std::string(text.substr(0, static_cast<std::size_t>(room)));
  return out;
}

CountBar::CountBar(std::FILE* out, std::string_view label, std::int64_t total)
    : out_(out), terminal_(isatty(fileno(out)) != 0), label_(label), total_(total) {}

CountBar::~CountBar() { erase(); }

void CountBar::show(std::int64_t done, std::string_view text) {
  if (!terminal_) return;
  fmt::print(out_, "\r{}\x1b[K", count_line(label_, done, total_, text, columns_of(out_)));
  std::fflush(out_);
  open_ = true;
}

void CountBar::erase() {
  if (open_) fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
  open_ = false;
}

}  // namespace everglow::cli
