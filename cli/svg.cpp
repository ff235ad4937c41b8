// Draws the pieces of a page.
#include "cli/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace everglow::cli {
namespace {

std::string tick_text(double value) {
  if (value >= 1e9) return fmt::format("{:g}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

constexpr const char* style =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1340px;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    ".charts{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;flex:1 1 420px;max-width:660px}svg{width:100%}"
    "svg text{font-size:12px;fill:#555}.g{stroke:#ddd}.l{fill:none;stroke:#1668b8;stroke-width:2}.f{fill:none;stroke:#999;"
    "stroke-width:2;stroke-dasharray:5 4}.d{fill:#1668b8}.df{fill:#aaa}line.k{stroke:#c2410c;stroke-width:1.5}svg "
    "text.k{fill:#c2410c}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}.knee{background:#fde8dc}"
    "td:first-child,th:first-child{text-align:left}.bo{fill:#1668b8}.bp{fill:#c2570c}.br{fill:#999}.dp{fill:#c2570c}"
    "svg text.b{fill:#222}figcaption{margin-bottom:1em}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg "
    "text{fill:#aaa}.g{stroke:#333}.knee{background:#4a2a18}.bp{fill:#d9772b}.dp{fill:#d9772b}svg text.b{fill:#ddd}}";

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

double Axis::at(double value) const {
  const double part = std::log(std::max(value, low) / low) / std::log(high / low);
  return begin + std::clamp(part, 0.0, 1.0) * (end - begin);
}

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

std::string frame(const Axis& x, const Axis& y, const std::string& x_name, const std::string& y_name) {
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} over {}\">", chart_width, chart_height,
                                escaped(y_name), escaped(x_name));
  for (double v = x.low; v <= x.high * 1.0001; v *= 10)
    out += fmt::format(
        "<line class=\"g\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>",
        x.at(v), chart_top, chart_height - chart_bottom, chart_height - chart_bottom + 16, tick_text(v));
  for (double v = y.low; v <= y.high * 1.0001; v *= 10)
    out += fmt::format(
        "<line class=\"g\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5}</text>",
        chart_left, chart_width - chart_right, y.at(v), chart_left - 6, y.at(v) + 4, tick_text(v));
  out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", (chart_left + chart_width - chart_right) / 2,
                     chart_height - 8, escaped(x_name));
  out += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
                     (chart_top + chart_height - chart_bottom) / 2, escaped(y_name));
  return out;
}

std::string dot_text(const std::pair<double, double>& dot, const Axis& x, const Axis& y, const char* style,
                     const std::string& title) {
  const auto& [a, b] = dot;
  if (!(a > 0) || !(b > 0)) return {};
  return fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}</title></circle>", style, x.at(a),
                     y.at(b), escaped(title));
}

std::string dots_text(const Dots& dots, const Axis& x, const Axis& y, const char* style) {
  std::string out;
  for (const auto& dot : dots) out += dot_text(dot, x, y, style, fmt::format("{:g}: {:.4g}", dot.first, dot.second));
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
      x.at(value), chart_top, chart_height - chart_bottom, x.at(value) + 5, chart_top + 12, escaped(text));
}

Dots roof_of(const Axis& x, const Axis& y, double peak, double slope) {
  const double first = std::max(x.low, y.low / slope), ridge = peak / slope;
  return {{first, first * slope}, {ridge, peak}, {x.high, peak}};
}

std::string figure_html(const std::string& svg, const std::string& caption) {
  return fmt::format("<figure>{}<figcaption>{}</figcaption></figure>", svg, escaped(caption));
}

std::string page_html(const std::string& title, const std::string& heading, const std::string& body) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>";
  return out + escaped(title) + "</title><style>" + style + "</style></head><body>\n<h1>" + escaped(heading) + "</h1>" + body +
         "\n</body></html>\n";
}

}  // namespace everglow::cli
