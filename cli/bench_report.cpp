// Draws records: a table of wins and losses, bars, rooflines.
#include "cli/bench_report.hpp"

#include "cli/bench_records.hpp"
#include "cli/svg.hpp"
#include "cli/written_file.hpp"

#include <everglow/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace everglow::cli {
namespace {

enum class Kind { ours, peer, reference };

Kind kind_of(const BenchRecord& r) {
  if (r.kernel.starts_with("reference.")) return Kind::reference;
  return r.kernel.starts_with("peer.") || r.kernel.starts_with("torch.") ? Kind::peer : Kind::ours;
}

/// "onednn" and "torch": rows of one library under several names are one peer.
std::string peer_of(const BenchRecord& r) { return r.kernel.starts_with("torch.") ? "PyTorch" : "oneDNN"; }

/// The rows that one run timed in turn.
struct Group {
  std::string op, line, direction, device;
  int threads = 1;
  std::vector<BenchRecord> rows;

  /// The row that a plan takes; of a file that does not say, our fastest.
  const BenchRecord* ours() const {
    const BenchRecord* out = nullptr;
    for (const BenchRecord& r : rows)
      if (kind_of(r) == Kind::ours && (out == nullptr || std::tuple(!r.chosen, r.median) < std::tuple(!out->chosen, out->median)))
        out = &r;
    return out;
  }
  /// Rows of a kind are compared with what stands here: the quickest peer, else the reference.
  const BenchRecord* other() const {
    const BenchRecord* out = nullptr;
    for (const BenchRecord& r : rows) {
      if (kind_of(r) == Kind::ours) continue;
      const auto rank = [](const BenchRecord& of) { return std::tuple(kind_of(of) != Kind::peer, of.median); };
      if (out == nullptr || rank(r) < rank(*out)) out = &r;
    }
    return out;
  }
};

std::vector<Group> groups_of(const std::vector<std::string>& files) {
  std::vector<Group> out;
  for (const std::string& file : files) {
    std::map<std::string, std::size_t> places;
    for (BenchRecord& r : read_records(file, "bench.report")) {
      const std::string key = fmt::format("{}\n{}\n{}\n{}", r.line, r.direction, r.device, r.threads);
      const auto [place, added] = places.emplace(key, out.size());
      if (added) out.push_back({r.op, r.line, r.direction, r.device, r.threads, {}});
      out[place->second].rows.push_back(std::move(r));
    }
  }
  if (out.empty()) throw Error(ErrorCode::invalid_argument, "bench.report", "expected at least one record in the files");
  return out;
}

std::string speed_text(const BenchRecord& r) {
  if (r.pairs > 0) return fmt::format("{:.4g} pairs/s", r.pairs / r.median * 1e6);
  if (r.flops > 0) return fmt::format("{:.3g} GFLOP/s", r.flops / r.median / 1e3);
  return fmt::format("{:.3g} GB/s", r.bytes / r.median / 1e3);
}

const char* bar_class(const BenchRecord& r) {
  const Kind kind = kind_of(r);
  return kind == Kind::ours ? "bo" : kind == Kind::peer ? "bp" : "br";
}

/// Longer is faster.
std::string bars(const Group& group) {
  constexpr double line = 22, names = 165, longest = 130;  // so that the longest text ends within the drawing
  const BenchRecord* other = group.other();
  double least = group.rows.front().median;
  for (const BenchRecord& r : group.rows) least = std::min(least, r.median);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} {}\">", chart_width,
                                line * static_cast<double>(group.rows.size()) + 4, escaped(group.line), escaped(group.direction));
  double top = 2;
  for (const BenchRecord& r : group.rows) {
    const double length = std::max(1.0, longest * least / r.median);
    std::string text = r.steps > 0 ? fmt::format("{:.3g} us/step", r.median / r.steps) : speed_text(r);
    if (r.floor > 0) text += fmt::format(", {:.0f} % of floor", 100 * r.floor / r.median);
    if (kind_of(r) == Kind::ours && other != nullptr) text += fmt::format(", {:.2f} x {}", other->median / r.median, other->kernel);
    const std::string title = fmt::format("median {:.4g} us, 10th to 90th percentile {:.4g} to {:.4g}{}", r.median, r.p10, r.p90,
                                          r.predicted > 0 ? fmt::format(", predicted {:.4g}", r.predicted) : std::string());
    out += fmt::format(
        "<text class=\"b\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}{}</text><rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{:.1f}\" "
        "height=\"16\"><title>{}</title></rect><text x=\"{:.1f}\" y=\"{}\">{}</text>",
        names - 6, top + 13, escaped(r.kernel), r.chosen ? " *" : "", bar_class(r), names, top + 1, length, escaped(title),
        names + length + 6, top + 13, escaped(text));
    top += line;
  }
  return out + "</svg>";
}

/// How our rows stand against one peer in one layer, dtype and direction.
struct Standing {
  int faster = 0, slower = 0;
  double logs = 0, least = 0, most = 0;
};

std::string standings(const std::vector<Group>& groups) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Standing> all;
  for (const Group& group : groups) {
    const BenchRecord* ours = group.ours();
    if (ours == nullptr) continue;
    std::map<std::string, double> best;  // of each peer
    for (const BenchRecord& r : group.rows) {
      if (kind_of(r) != Kind::peer) continue;
      const auto [place, added] = best.emplace(peer_of(r), r.median);
      if (!added) place->second = std::min(place->second, r.median);
    }
    for (const auto& [peer, median] : best) {
      Standing& s = all[{group.op, ours->dtype, group.direction, peer}];
      const double ratio = median / ours->median;
      s.least = s.faster + s.slower == 0 ? ratio : std::min(s.least, ratio), s.most = std::max(s.most, ratio);
      (ratio >= 1 ? s.faster : s.slower) += 1;
      s.logs += std::log(ratio);
    }
  }
  if (all.empty()) return "<p>No peer was timed beside these rows.</p>";
  std::string out =
      "<table><tr><th>layer</th><th>dtype</th><th>direction</th><th>peer</th><th>problems</th><th>faster</th><th>slower</th>"
      "<th>times faster (geometric mean)</th><th>least</th><th>most</th></tr>";
  for (const auto& [key, s] : all) {
    const auto& [op, dtype, direction, peer] = key;
    const int count = s.faster + s.slower;
    out += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td>"
        "<td>{:.2f}</td></tr>",
        s.slower > 0 ? " class=\"knee\"" : "", escaped(op), escaped(dtype), escaped(direction), peer, count, s.faster, s.slower,
        std::exp(s.logs / count), s.least, s.most);
  }
  return out + "</table>";
}

/// One chart for each device, dtype and number of threads.
std::string rooflines(const std::vector<Group>& groups) {
  std::map<std::tuple<std::string, std::string, int>, std::vector<const BenchRecord*>> all;
  for (const Group& group : groups)
    for (const BenchRecord& r : group.rows)
      if (r.flops > 0 && r.bytes > 0 && r.peak_gflops > 0 && r.bandwidth_gbs > 0) all[{r.device, r.dtype, r.threads}].push_back(&r);
  std::string out;
  for (const auto& [key, rows] : all) {
    const double peak = rows.front()->peak_gflops, bandwidth = rows.front()->bandwidth_gbs, ridge = peak / bandwidth;
    std::vector<double> xs{ridge}, ys{peak};
    for (const BenchRecord* r : rows) xs.push_back(r->flops / r->bytes), ys.push_back(r->flops / r->median / 1e3);
    const Axis x = x_axis_of(xs), y = y_axis_of(ys);
    std::string svg = frame(x, y, "FLOP a byte", "GFLOP/s") + line_text(roof_of(x, y, peak, bandwidth), x, y, "f");
    for (const BenchRecord* r : rows) {
      const char* style = kind_of(*r) == Kind::ours ? "d" : kind_of(*r) == Kind::peer ? "dp" : "df";
      svg += dot_text({r->flops / r->bytes, r->flops / r->median / 1e3}, x, y, style,
                      fmt::format("{} {}: {}, {}", r->line, r->direction, r->kernel, speed_text(*r)));
    }
    out += figure_html(svg + mark(ridge, x, fmt::format("ridge {:.0f}", ridge)) + "</svg>",
                       fmt::format("{}, {}, {} threads: ours blue, peers orange, the reference grey; the device's figures dashed",
                                   std::get<0>(key), std::get<1>(key), std::get<2>(key)));
  }
  return out.empty() ? "<p>No record holds the device's figures and counts arithmetic.</p>"
                     : "<div class=\"charts\">\n" + out + "\n</div>";
}

std::string problems(const std::vector<Group>& groups) {
  std::vector<std::string> layers;
  for (const Group& group : groups)
    if (std::find(layers.begin(), layers.end(), group.op) == layers.end()) layers.push_back(group.op);
  std::string out;
  for (const std::string& layer : layers) {
    out += fmt::format("\n<h2>{}</h2><div class=\"charts\">\n", escaped(layer));
    for (const Group& group : groups)
      if (group.op == layer) out += figure_html(bars(group), fmt::format("{}, {}", group.line, group.direction)) + "\n";
    out += "</div>";
  }
  return out;
}

}  // namespace

void write_report(const std::vector<std::string>& files, const std::string& html) {
  const std::vector<Group> groups = groups_of(files);
  std::set<std::string> devices;
  for (const Group& group : groups) devices.insert(fmt::format("{}, {} threads", group.device, group.threads));
  std::string body = fmt::format("<p>{}.</p>", escaped(fmt::format("{}", fmt::join(devices, "; "))));
  body +=
      "<p>Rows of a problem were timed in turn within one run; compare them with one another and not across runs. A star marks the "
      "row that a plan takes by itself.</p>\n<h2>Beside the peers</h2>" +
      standings(groups) + "\n<h2>Roofline</h2>" + rooflines(groups) + problems(groups);
  write_file("bench.report", "--html", html, page_html("everglow bench", "everglow bench", body));
}

}  // namespace everglow::cli
