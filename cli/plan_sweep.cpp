// Sweeps: reads the ranges, walks them, and prints what came.
#include "cli/plan_sweep.hpp"

#include "cli/plan_table.hpp"
#include "cli/written_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace everglow::cli {
namespace {

constexpr std::size_t most_points = 4096;
constexpr double near_best = 0.9;
constexpr const char* example = "for example --sweep batch=1:4096:x2, --sweep batch=64:512:+64 or --sweep batch=1,8,64";

struct Range {
  std::string name;
  std::int64_t* size = nullptr;
  std::vector<std::int64_t> values;
};

[[noreturn]] void wrong(const std::string& text, const std::string& why) {
  throw CLI::ValidationError("--sweep", fmt::format("{}, got \"{}\"; {}", why, text, example));
}

std::int64_t whole_number(const std::string& part, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size() || value < 0 || static_cast<double>(value) > most_size)
    wrong(text, fmt::format("expected whole numbers from 0 to {:.0f}", most_size));
  return value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

std::vector<std::int64_t> values_of(const std::string& range, const std::string& text) {
  std::vector<std::int64_t> out;
  if (range.find(':') == std::string::npos) {
    for (const std::string& part : split(range, ',')) out.push_back(whole_number(part, text));
    return out;
  }
  const auto parts = split(range, ':');
  if (parts.size() != 3 || parts[2].size() < 2 || (parts[2][0] != 'x' && parts[2][0] != '+'))
    wrong(text, "expected FROM:TO:xFACTOR or FROM:TO:+STEP");
  const std::int64_t from = whole_number(parts[0], text), to = whole_number(parts[1], text);
  const std::int64_t by = whole_number(parts[2].substr(1), text);
  const bool times = parts[2][0] == 'x';
  if (from > to || by < (times ? 2 : 1) || (times && from < 1))
    wrong(text, "expected FROM <= TO, a factor of at least 2 (with FROM of at least 1) or a step of at least 1");
  for (std::int64_t value = from; value <= to; value = times ? value * by : value + by) {
    out.push_back(value);
    if (out.size() > most_points) wrong(text, fmt::format("expected at most {} points", most_points));
    if (times && value > to / by) break;
  }
  return out;
}

Range parse(const PlanRequest& request, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::string names;
  for (const SizeOption& size : request.sizes()) {
    names += (names.empty() ? "" : ", ") + size.name;
    if (size.name != name || equals == std::string::npos) continue;
    Range range{name, size.value, values_of(text.substr(equals + 1), text)};
    for (const std::int64_t value : range.values)
      if (value < size.least || static_cast<double>(value) > size.most)
        wrong(text, fmt::format("{}: expected {} to {:.0f}", name, size.least, size.most));
    return range;
  }
  wrong(text, fmt::format("expected DIMENSION=RANGE with one of {}", names));
}

double most_tflops(const std::vector<PlanPoint>& points) {
  double best = 0;
  for (const PlanPoint& point : points) best = std::max(best, point.tflops());
  return best;
}

}  // namespace

PlanPoint point_of(const Explanation& e, double useful) {
  PlanPoint out;
  out.time_us = e.time_us, out.floor_us = e.floor_us;
  const bool training = std::any_of(e.gemms.begin(), e.gemms.end(), [](const auto& g) { return g.pass != "forward"; });
  for (const ExplanationGemm& g : e.gemms) {
    const double flops =
        2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k) * static_cast<double>(g.count);
    out.flops += flops;
    if (g.arithmetic_intensity > 0) out.bytes += flops / g.arithmetic_intensity;
  }
  // Tiled attention keeps its scores on chip: it computes once more and moves less than its products say.
  for (const ExplanationAlgorithm& a : e.algorithms)
    if (a.name == "flash2")
      out.flops = a.flops * (training ? 3.5 : 1), out.bytes = static_cast<double>(a.bytes) * (training ? 3.5 : 1);
  out.per_second = e.time_us > 0 ? useful / e.time_us * 1e6 : 0;
  return out;
}

Sweep run_sweep(const PlanRequest& request, const std::function<std::string()>& title, const std::string& unit,
                const std::function<PlanPoint()>& point) {
  std::vector<Range> ranges;
  std::size_t count = 1;
  for (const std::string& text : request.sweep) {
    ranges.push_back(parse(request, text));
    count *= std::max<std::size_t>(ranges.back().values.size(), 1);
    if (count > most_points) wrong(text, fmt::format("expected at most {} points in all", most_points));
  }
  Sweep out{.title = {}, .unit = unit, .dimensions = {}, .points = {}};
  for (const Range& range : ranges) out.dimensions.push_back(range.name);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = i;  // the first dimension runs fastest
    std::vector<std::int64_t> sizes;
    for (const Range& range : ranges) {
      *range.size = range.values[rest % range.values.size()];
      rest /= range.values.size();
      sizes.push_back(*range.size);
    }
    if (i == 0) out.title = fmt::format("{} from {}", fmt::join(out.dimensions, " and "), title());
    out.points.push_back(point());
    out.points.back().sizes = std::move(sizes);
  }
  const double best = most_tflops(out.points);
  while (out.knee + 1 < out.points.size() && out.points[out.knee].tflops() < near_best * best) ++out.knee;
  return out;
}

std::string sweep_text(const Sweep& sweep) {
  std::vector<std::vector<std::string>> rows(1, sweep.dimensions);
  const bool measured = !sweep.points.empty() && sweep.points.front().measured_us > 0;
  for (const std::string& head : {std::string("time"), std::string("floor"), std::string("of it"), std::string("TFLOP/s"),
                                  std::string("FLOP/B"), sweep.unit + "/s"})
    rows[0].push_back(head);
  if (measured) rows[0].insert(rows[0].end(), {"measured", "error"});
  rows[0].emplace_back();
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const PlanPoint& p = sweep.points[i];
    std::vector<std::string>& row = rows.emplace_back();
    for (const std::int64_t size : p.sizes) row.push_back(fmt::format("{}", size));
    row.push_back(time_text(p.time_us));
    row.push_back(time_text(p.floor_us));
    row.push_back(fmt::format("{:.1f}%", p.time_us > 0 ? 100 * p.floor_us / p.time_us : 100));
    row.push_back(fmt::format("{:.3g}", p.tflops()));
    row.push_back(fmt::format("{:.3g}", p.intensity()));
    row.push_back(fmt::format("{:.4g}", p.per_second));
    if (measured) {
      row.push_back(time_text(p.measured_us));
      row.push_back(fmt::format("{:+.0f} %", 100 * (p.time_us / p.measured_us - 1)));
    }
    row.emplace_back(i == sweep.knee ? "<- knee" : "");
  }
  return wrapped(sweep.title, 2) + "\n\n" + aligned_table(rows, 0) + "\nknee: the first size of at least 90 % of the best rate\n";
}

Json sweep_json(const Sweep& sweep, const PlanRequest& request) {
  Json points = Json::array();
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const PlanPoint& p = sweep.points[i];
    Json sizes;
    for (std::size_t d = 0; d < sweep.dimensions.size(); ++d) {
      std::string name = sweep.dimensions[d];
      std::replace(name.begin(), name.end(), '-', '_');
      sizes[name] = p.sizes[d];
    }
    points.push_back({{"sizes", sizes},
                      {"time_us", p.time_us},
                      {"floor_us", p.floor_us},
                      {"tflops", p.tflops()},
                      {"arithmetic_intensity", p.intensity()},
                      {"per_second", p.per_second},
                      {"knee", i == sweep.knee}});
    if (p.measured_us > 0) points.back()["measured_us"] = p.measured_us, points.back()["error"] = p.time_us / p.measured_us - 1;
  }
  return {{"schema_version", plan_schema_version},
          {"layer", request.layer()},
          {"device", request.description_of_device().name},
          {"dtype", std::string(name(request.dtype()))},
          {"figures", request.description_of_device().figures.source},
          {"unit", sweep.unit},
          {"sweep", points}};
}

void print_sweep(const Sweep& sweep, const PlanRequest& request) {
  if (!request.html.empty()) write_file("plan", "--html", request.html, sweep_html(sweep));
  if (request.json())
    fmt::print("{}\n", sweep_json(sweep, request).dump(2));
  else
    fmt::print("{}", sweep_text(sweep));
}

}  // namespace everglow::cli
