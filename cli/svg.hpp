// Pieces of a page of HTML with inline SVG: charts with logarithmic axes, and the style of light and dark screens. A page holds all
// it needs: no scripts, no links.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace everglow::cli {

/// The drawing of a chart, and the margins of its frame.
inline constexpr double chart_width = 640, chart_height = 320, chart_left = 70, chart_right = 20, chart_top = 20, chart_bottom = 48;

std::string escaped(const std::string& text);

/// Logarithmic from one value to another.
struct Axis {
  double low = 1, high = 10;
  double begin = 0, end = 1;  // pixels
  double at(double value) const;
};

/// Powers of ten around the values; those that are 0 have no place on it.
Axis axis_of(const std::vector<double>& values, double begin, double end);
/// Axes of a chart of chart_width x chart_height.
inline Axis x_axis_of(const std::vector<double>& values) { return axis_of(values, chart_left, chart_width - chart_right); }
inline Axis y_axis_of(const std::vector<double>& values) { return axis_of(values, chart_height - chart_bottom, chart_top); }

/// Opens an svg element with a grid, ticks and names; the caller adds what it shows and closes it.
std::string frame(const Axis& x, const Axis& y, const std::string& x_name, const std::string& y_name);

using Dots = std::vector<std::pair<double, double>>;
/// Circles of a class of the style; `title` is what a pointer over one shows, by default its numbers.
std::string dots_text(const Dots& dots, const Axis& x, const Axis& y, const char* style);
std::string dot_text(const std::pair<double, double>& dot, const Axis& x, const Axis& y, const char* style,
                     const std::string& title);
std::string line_text(const Dots& dots, const Axis& x, const Axis& y, const char* style);
/// A vertical line with a text.
std::string mark(double value, const Axis& x, const std::string& text);
/// The roof of a device: `first` is where the slope begins.
Dots roof_of(const Axis& x, const Axis& y, double peak, double slope);

std::string figure_html(const std::string& svg, const std::string& caption);
/// A whole document; title and heading are text, the body is HTML.
std::string page_html(const std::string& title, const std::string& heading, const std::string& body);

}  // namespace everglow::cli
