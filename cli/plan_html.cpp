// A sweep as one page of HTML with inline SVG.
#include "cli/plan_sweep.hpp"
#include "cli/plan_table.hpp"
#include "cli/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace everglow::cli {
namespace {

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
  const Axis x = x_axis_of(firsts(dots)), y = y_axis_of(all);
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
  const Axis x = x_axis_of(xs), y = y_axis_of(ys);
  const Dots roof = roof_of(x, y, sweep.peak_tflops, std::max(sweep.bandwidth_gbs, 1e-9) / 1000);
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

}  // namespace

std::string sweep_html(const Sweep& sweep) {
  const Dots time = dots_of(sweep, [](const PlanPoint& p) { return p.time_us; });
  const Dots floor = dots_of(sweep, [](const PlanPoint& p) { return p.floor_us; });
  const Dots rate = dots_of(sweep, [](const PlanPoint& p) { return p.per_second; });
  std::string body = "<p>" + escaped(sweep.title) + "</p><div class=\"charts\">\n";
  body += figure_html(curve(sweep, rate, {}, sweep.unit + " a second"),
                      "Throughput; the knee is the first size of at least 90 % of the best rate");
  body += figure_html(curve(sweep, time, floor, "us"), "Predicted time, and its floor (dashed)");
  body += figure_html(roofline(sweep), "The points on the roofline of full rate and bandwidth (dashed)");
  return page_html(sweep.title, "everglow plan", body + "\n</div>\n" + table_html(sweep));
}

}  // namespace everglow::cli
