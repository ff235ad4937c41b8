// A sweep as one page of HTML with inline SVG.
#include "cli/plan_sweep.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace everglow::cli {
namespace {

constexpr double width = 640, height = 320, left = 70, right = 20, top = 20, bottom = 48;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

/// Logarithmic from one value to another.
struct Axis {
  double low = 1, high = 10;
  double begin = 0, end = 1;  // pixels
  double at(double value) const {
    const double part = std::log(std::max(value, low) / low) / std::log(high / low);
    return begin + std::clamp(part, 0.0, 1.0) * (end - begin);
  }
};

/// Powers of ten around the values; those that are 0 have no place on it.
Axis axis_of(const std::vector<double>& values, double begin, double end) {
  double low = 0, high = 0;
  for (const double v : values) {
    if (!(v > 0)) continue;
    low = low == 0 ? v : std::min(low, v);
    high = std::max(high, v);
  }
  if (low == 0) low = high = 1;
  Axis out{std::pow(10, std::floor(std::log10(low))), std::pow(10, std::ceil(std::log10(high))), begin, end};
  if (out.high <= out.low) out.high = out.low * 10;
  return out;
}

std::string tick_text(double value) {
  if (value >= 1e9) return fmt::format("{:g}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::string frame(const Axis& x, const Axis& y, const std::string& x_name, const std::string& y_name) {
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} over {}\">", width, height,
                                escaped(y_name), escaped(x_name));
  for (double v = x.low; v <= x.high * 1.0001; v *= 10)
    out += fmt::format(
        "<line class=\"g\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>",
        x.at(v), top, height - bottom, height - bottom + 16, tick_text(v));
  for (double v = y.low; v <= y.high * 1.0001; v *= 10)
    out += fmt::format(
        "<line class=\"g\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5}</text>",
        left, width - right, y.at(v), left - 6, y.at(v) + 4, tick_text(v));
  out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", (left + width - right) / 2, height - 8,
                     escaped(x_name));
  out += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
                     (top + height - bottom) / 2, escaped(y_name));
  return out;
}

using Dots = std::vector<std::pair<double, double>>;

std::string dots_text(const Dots& dots, const Axis& x, const Axis& y, const char* style) {
  std::string out;
  for (const auto& [a, b] : dots)
    if (a > 0 && b > 0)
      out += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{:g}: {:.4g}</title></circle>", style,
                         x.at(a), y.at(b), a, b);
  return out;
}

std::string line_text(const Dots& dots, const Axis& x, const Axis& y, const char* style) {
  std::string points;
  for (const auto& [a, b] : dots)
    if (a > 0 && b > 0) points += fmt::format("{:.1f},{:.1f} ", x.at(a), y.at(b));
  return fmt::format("<polyline class=\"{}\" points=\"{}\"/>", style, points);
}

std::string mark(double value, const Axis& x, const std::string& text) {
  if (!(value > 0)) return {};
  return fmt::format(
      "<line class=\"k\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text class=\"k\" x=\"{3:.1f}\" y=\"{4}\">{5}</text>",
      x.at(value), top, height - bottom, x.at(value) + 5, top + 12, escaped(text));
}

template <class Value>
Dots dots_of(const Sweep& sweep, const Value& value) {
  Dots out;
  for (const PlanPoint& point : sweep.points) out.emplace_back(static_cast<double>(point.sizes.front()), value(point));
  return out;
}

std::vector<double> firsts(const Dots& dots) {
  std::vector<double> out;
  for (const auto& dot : dots) out.push_back(dot.first);
  return out;
}
std::vector<double> seconds(const Dots& dots) {
  std::vector<double> out;
  for (const auto& dot : dots) out.push_back(dot.second);
  return out;
}

/// Several dimensions make a cloud: only one of them makes a line.
std::string curve(const Sweep& sweep, const Dots& dots, const Dots& floors, const std::string& y_name) {
  const std::string& x_name = sweep.dimensions.front();
  std::vector<double> all = seconds(dots);
  for (const double v : seconds(floors)) all.push_back(v);
  const Axis x = axis_of(firsts(dots), left, width - right), y = axis_of(all, height - bottom, top);
  const bool line = sweep.dimensions.size() == 1;
  const double knee = sweep.points.empty() ? 0 : static_cast<double>(sweep.points[sweep.knee].sizes.front());
  return frame(x, y, x_name, y_name) +
         (line ? line_text(floors, x, y, "f") + line_text(dots, x, y, "l") : dots_text(floors, x, y, "df")) +
         dots_text(dots, x, y, "d") + mark(knee, x, fmt::format("knee {:g}", knee)) + "</svg>";
}

std::string roofline(const Sweep& sweep) {
  Dots dots;
  for (const PlanPoint& point : sweep.points) dots.emplace_back(point.intensity(), point.tflops());
  const double ridge = sweep.bandwidth_gbs > 0 ? sweep.peak_tflops * 1000 / sweep.bandwidth_gbs : 1;
  std::vector<double> xs = firsts(dots), ys = seconds(dots);
  xs.push_back(ridge), ys.push_back(sweep.peak_tflops);
  const Axis x = axis_of(xs, left, width - right), y = axis_of(ys, height - bottom, top);
  const double first = std::max(x.low, y.low * 1000 / std::max(sweep.bandwidth_gbs, 1e-9));
  const Dots roof{{first, first * sweep.bandwidth_gbs / 1000}, {ridge, sweep.peak_tflops}, {x.high, sweep.peak_tflops}};
  return frame(x, y, "FLOP a byte", "TFLOP/s") + line_text(roof, x, y, "f") + dots_text(dots, x, y, "d") +
         mark(ridge, x, fmt::format("ridge {:.0f}", ridge)) + "</svg>";
}

std::string table_html(const Sweep& sweep) {
  std::string out = "<table><tr>";
  for (const std::string& name : sweep.dimensions) out += "<th>" + escaped(name) + "</th>";
  out += fmt::format("<th>time</th><th>floor</th><th>TFLOP/s</th><th>FLOP/B</th><th>{}/s</th></tr>", escaped(sweep.unit));
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const PlanPoint& p = sweep.points[i];
    out += i == sweep.knee ? "<tr class=\"knee\">" : "<tr>";
    for (const std::int64_t size : p.sizes) out += fmt::format("<td>{}</td>", size);
    out += fmt::format("<td>{}</td><td>{}</td><td>{:.3g}</td><td>{:.3g}</td><td>{:.4g}</td></tr>", time_text(p.time_us),
                       time_text(p.floor_us), p.tflops(), p.intensity(), p.per_second);
  }
  return out + "</table>";
}

constexpr const char* style =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1340px;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    ".charts{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;flex:1 1 420px;max-width:660px}svg{width:100%}"
    "svg text{font-size:12px;fill:#555}.g{stroke:#ddd}.l{fill:none;stroke:#1668b8;stroke-width:2}.f{fill:none;stroke:#999;"
    "stroke-width:2;stroke-dasharray:5 4}.d{fill:#1668b8}.df{fill:#aaa}line.k{stroke:#c2410c;stroke-width:1.5}svg "
    "text.k{fill:#c2410c}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}.knee{background:#fde8dc}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg "
    "text{fill:#aaa}.g{stroke:#333}.knee{background:#4a2a18}}";

}  // namespace

std::string sweep_html(const Sweep& sweep) {
  const Dots time = dots_of(sweep, [](const PlanPoint& p) { return p.time_us; });
  const Dots floor = dots_of(sweep, [](const PlanPoint& p) { return p.floor_us; });
  const Dots rate = dots_of(sweep, [](const PlanPoint& p) { return p.per_second; });
  const auto figure = [](const std::string& svg, const std::string& text) {
    return fmt::format("<figure>{}<figcaption>{}</figcaption></figure>", svg, escaped(text));
  };
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>";
  out += escaped(sweep.title) + "</title><style>" + style + "</style></head><body>\n<h1>everglow plan</h1><p>" +
         escaped(sweep.title) + "</p><div class=\"charts\">\n";
  out += figure(curve(sweep, rate, {}, sweep.unit + " a second"),
                "Throughput; the knee is the first size of at least 90 % of the best rate");
  out += figure(curve(sweep, time, floor, "us"), "Predicted time, and its floor (dashed)");
  out += figure(roofline(sweep), "The points on the roofline of full rate and bandwidth (dashed)");
  return out + "\n</div>\n" + table_html(sweep) + "\n</body></html>\n";
}

}  // namespace everglow::cli
