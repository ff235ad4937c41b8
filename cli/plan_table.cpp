// Explanations for people.
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace everglow::cli {
namespace {

using Cells = std::vector<std::string>;

std::string tile_text(const ExplanationTile& tile) { return fmt::format("{}x{}", tile.m, tile.n); }

/// Three digits, more before the point.
std::string number(double value) {
  const double size = std::fabs(value);
  return fmt::format(fmt::runtime(size >= 100 || size == 0 ? "{:.0f}" : size >= 10 ? "{:.1f}" : "{:.2f}"), value);
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

/// "recurrent", with "layer 2" and "reverse" where there are several.
std::string name_of(const ExplanationGemm& gemm, bool layers, bool directions) {
  std::string out = gemm.name;
  if (layers) out += fmt::format(" {}", gemm.layer);
  if (directions && gemm.direction == 1) out += " back";
  return out;
}

std::string flags_of(const ExplanationGemm& gemm) {
  return fmt::format("{}{}", gemm.transpose_a ? 'T' : 'N', gemm.transpose_b ? 'T' : 'N');
}

std::string products_text(const std::vector<ExplanationGemm>& gemms) {
  const bool layers = std::any_of(gemms.begin(), gemms.end(), [](const auto& g) { return g.layer > 0; });
  const bool directions = std::any_of(gemms.begin(), gemms.end(), [](const auto& g) { return g.direction > 0; });
  std::vector<Cells> sizes{{"product", "of", "times", "M", "N", "K", "op", "align", "FLOP/B", "ridge", "bound"}};
  std::vector<Cells> times{{"product", "of", "tile", "tiles", "filled", "waves", "filled", "chosen", "each", "all", "floor"}};
  for (const ExplanationGemm& g : gemms) {
    const std::string name = name_of(g, layers, directions);
    const auto count = static_cast<double>(g.count);
    sizes.push_back({g.pass, name, fmt::format("{}", g.count), fmt::format("{}", g.m), fmt::format("{}", g.n),
                     fmt::format("{}", g.k), flags_of(g), fmt::format("{}", g.alignment_bytes), number(g.arithmetic_intensity),
                     number(g.ridge), g.bound});
    std::string chosen = tile_text(g.chosen_tile);
    if (g.split_k > 1) chosen += fmt::format("/{}", g.split_k);
    times.push_back({g.pass, name, tile_text(g.tile), fmt::format("{}", g.tiles), percent(g.tile_efficiency),
                     fmt::format("{:.2f}", g.waves), percent(g.wave_efficiency), chosen, time_text(g.time_us),
                     time_text(count * g.time_us), time_text(count * g.floor_us)});
  }
  for (auto* table : {&sizes, &times})
    for (Cells& row : *table) {
      // Short words, so that both tables fit.
      if (row[0] == "activation_gradient") row[0] = "dx of";
      if (row[0] == "weight_gradient") row[0] = "dw of";
      row[0] = row[0] == "product" ? row[0] : fmt::format("{} {}", row[0], row[1]);
      row.erase(row.begin() + 1);
    }
  return "\n" + aligned_table(sizes) + "\n" + aligned_table(times);
}

/// Each tensor whose rows keep the fast kernels away, once.
std::string misaligned_text(const std::vector<ExplanationGemm>& gemms, std::int64_t works) {
  std::vector<std::string> lines;
  for (const ExplanationGemm& g : gemms)
    for (const ExplanationOperand& o : g.operands) {
      if ((works == 0 || o.alignment_bytes >= works)) continue;
      std::string line = fmt::format("{} of {}: rows of {} bytes are multiples of {}, {} are needed, 128 are best", o.tensor,
                                     g.pass, o.leading_bytes, o.alignment_bytes, works);
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
    }
  std::string out = lines.empty() ? "" : "\noff the alignment of tensor cores\n";
  for (const std::string& line : lines) out += "  " + wrapped(line, 4) + "\n";
  return out;
}

std::string residency_text(const ExplanationResidency& r) {
  std::string place = fmt::format("{}, does not stay on chip", bytes_text(static_cast<double>(r.bytes)));
  if (r.resident)
    place = fmt::format("{}, stays in {}: {} group{} of {} {} with {} hidden units each", bytes_text(static_cast<double>(r.bytes)),
                        fmt::join(r.where, " and "), r.groups, r.groups == 1 ? "" : "s", r.blocks,
                        r.where.back() == "l2" ? "cores" : "thread blocks", r.units_per_block);
  std::string out = fmt::format("\nrecurrent matrix  {}", wrapped(place, 18));
  out += fmt::format("\n                  {}\n", wrapped(r.reason, 18));
  out += fmt::format("largest hidden    {} stays resident with this cell, dtype and device\n", r.largest_hidden);
  out += fmt::format("a step            {}: hand-off {}, broadcast {}, arithmetic {}; floor {}\n", time_text(r.step_us),
                     time_text(r.hand_off_us), time_text(r.broadcast_us), time_text(r.arithmetic_us), time_text(r.step_floor_us));
  return out;
}

std::string peers_text(const std::vector<ExplanationPeer>& peers) {
  std::string out = "\nother libraries\n";
  for (const ExplanationPeer& peer : peers)
    out += fmt::format("  {:<21}  {:<3}  {}\n", peer.name, peer.eligible ? "yes" : "no", wrapped(peer.reason, 30));
  return out;
}

std::string algorithms_text(const std::vector<ExplanationAlgorithm>& algorithms) {
  std::vector<Cells> rows{
      {"algorithm", "moves", "tile", "shared", "registers", "blocks", "waves", "splits", "forward", "backward"}};
  std::string formulas;
  for (const ExplanationAlgorithm& a : algorithms) {
    rows.push_back({a.name, bytes_text(static_cast<double>(a.bytes)), tile_text(a.tile),
                    bytes_text(static_cast<double>(a.shared_bytes)), bytes_text(static_cast<double>(a.register_bytes)),
                    fmt::format("{}", a.blocks), fmt::format("{:.2f}", a.waves), fmt::format("{}", a.splits), time_text(a.time_us),
                    time_text(a.backward_time_us)});
    formulas += fmt::format("  {:<17} {}\n", a.name, wrapped(a.formula, 20));
  }
  return "\n" + aligned_table(rows) + "\nbytes moved, forward\n" + formulas;
}

std::string scaled(double value, double step, const std::array<const char*, 4>& units) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && value >= step) value /= step, ++unit;
  return fmt::format("{} {}", number(value), units[unit]);
}

}  // namespace

std::string aligned_table(const std::vector<Cells>& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const Cells& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::size_t width = widths.size() - std::min<std::size_t>(widths.size(), 1);
  for (const std::size_t w : widths) width += w;
  const std::string gap = width + widths.size() > table_width ? " " : "  ";
  std::string out;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += gap;
      line += i < left ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::istringstream words{std::string(text)};
  std::string out;
  std::size_t column = indent;
  for (std::string word; words >> word;) {
    if (!out.empty() && column + 1 + word.size() > table_width) {
      out += "\n" + std::string(indent, ' ') + word;
      column = indent + word.size();
      continue;
    }
    if (!out.empty()) out += ' ', ++column;
    out += word;
    column += word.size();
  }
  return out;
}

std::string time_text(double us) { return scaled(us, 1000, {"us", "ms", "s", "ks"}); }
std::string bytes_text(double bytes) { return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB"}); }

std::string advice_text(const std::vector<ExplanationAdvice>& advice) {
  if (advice.empty()) return "\nadvice            none: no larger size or row stride pays on this device\n";
  std::string out = "\nadvice\n";
  int count = 0;
  for (const ExplanationAdvice& a : advice) {
    const std::string change = a.kind == "stride" ? fmt::format("row stride of {} {} -> {}", a.dimension, a.from, a.to)
                                                  : fmt::format("{} {} -> {}", a.dimension, a.from, a.to);
    out += fmt::format("  {}. {}\n", ++count,
                       wrapped(fmt::format("{}: {:.2f}x, {} -> {}; {}", change, a.gain, time_text(a.time_us_before),
                                           time_text(a.time_us_after), a.reason),
                               5));
  }
  return out;
}

std::string explanation_text(const std::string& title, const Explanation& e) {
  std::string out = wrapped(title, 2) + "\n";
  out += fmt::format("kernel            {}\n",
                     e.kernel.empty() ? "none of ours; what a vendor's library does is predicted" : e.kernel);
  for (const ExplanationRow& row : e.rows)
    out += fmt::format("  {:<26}  {}\n", row.name,
                       wrapped(row.taken ? "taken" + (row.reason.empty() ? "" : ": " + row.reason) : row.reason, 30));
  out += fmt::format("time              {} predicted, floor {} ({} of it)\n", time_text(e.time_us), time_text(e.floor_us),
                     percent(e.time_us > 0 ? e.floor_us / e.time_us : 1));
  if (!e.gemms.empty()) out += products_text(e.gemms) + misaligned_text(e.gemms, e.alignment_needed);
  if (e.residency) out += residency_text(*e.residency);
  if (!e.peers.empty()) out += peers_text(e.peers);
  if (!e.algorithms.empty()) out += algorithms_text(e.algorithms);
  return out + advice_text(e.advice);
}

}  // namespace everglow::cli
