// The options that all kinds of `everglow plan` share.
#include "cli/plan_request.hpp"

#include "cli/arguments.hpp"
#include "cli/plan_json.hpp"
#include "cli/plan_measure.hpp"
#include "cli/plan_sweep.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <tuple>

namespace everglow::cli {

PlanRequest::PlanRequest(CLI::App& app, std::string layer) : app_(app), layer_(std::move(layer)) {
  app.add_option("--device", device, "cpu, cuda:N, a name (everglow plan --help lists them) or a file of JSON")
      ->capture_default_str();
  app.add_option("--dtype", dtype_, "f32, f16, bf16 or f64 (default f32 on a CPU, f16 on a GPU)");
  app.add_option("--math", math_, "Of f32 products: ieee or tf32")->capture_default_str()->check(one_of({"ieee", "tf32"}));
  app.add_option("--threads", threads_, "CPU threads (default EVERGLOW_THREADS, else all cores)")
      ->check(whole(1, "--threads 2", 4096));
  app.add_option("--kernel", kernel_, "The only row that may run");
  app.add_flag("--deterministic", deterministic_, "Only rows that give the same bits for any number of threads");
  app.add_option("--sweep", sweep, "Many sizes, DIMENSION=FROM:TO:xFACTOR, FROM:TO:+STEP or A,B,C; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--html", html, "Write the sweep to this file as one page with charts")->check(file_name());
  app.add_flag("--json", json_, "For programs: docs/plan.schema.json describes it");
}

void PlanRequest::size(const SizeOption& size, const std::string& help, const std::string& example) {
  optional_size(size, help, example);
  required_.push_back(
      {app_.get_option("--" + size.name),
       fmt::format("expected a whole number of at least {}, got none; for example --{} {}", size.least, size.name, example)});
}

void PlanRequest::optional_size(const SizeOption& size, const std::string& help, const std::string& example) {
  const std::string flag = "--" + size.name;
  app_.add_option(flag, *size.value, help)->check(whole(static_cast<double>(size.least), flag + " " + example, size.most));
  sizes_.push_back(size);
}

void PlanRequest::may_measure() {
  app_.add_flag("--measure", measure,
                "Run the layer on this CPU too: predicted beside measured, by figures that are measured first");
}

/// A size that a sweep gives need not be given beside it.
bool PlanRequest::swept(const std::string& name) const {
  return std::any_of(sweep.begin(), sweep.end(), [&](const std::string& text) { return text.starts_with(name + "="); });
}

void PlanRequest::require_sizes() const {
  if (!html.empty() && sweep.empty())
    throw CLI::ValidationError("--html", "expected --sweep beside it; for example --sweep batch=1:4096:x2 --html sweep.html");
  if (measure && device != "cpu")
    throw CLI::ValidationError("--measure", fmt::format("expected --device cpu, the device at hand, got \"{}\"", device));
  for (const Required& required : required_)
    if (required.option->count() == 0 && !swept(required.option->get_name().substr(2)))
      throw CLI::ValidationError(required.option->get_name(), required.text);
}

DeviceDescription PlanRequest::description_of_device() const { return read_device(device); }

PlanOptions PlanRequest::options() const {
  PlanOptions out;
  out.threads = threads_;
  out.force = kernel_;
  out.deterministic = deterministic_;
  out.math = math_ == "tf32" ? Math::tf32 : Math::ieee;
  if (!tile.empty()) std::tie(out.tile_m, out.tile_n) = parse_tile(tile);
  return out;
}

DType PlanRequest::dtype() const {
  if (dtype_.empty()) return device == "cpu" ? DType::f32 : DType::f16;
  try {
    const DType parsed = parse_dtype(dtype_);
    if (parsed <= DType::f64) return parsed;
  } catch (const Error&) {
    // Said below, with the types that a layer computes in.
  }
  throw CLI::ValidationError("--dtype",
                             fmt::format("expected f32, f16, bf16 or f64, got \"{}\"; for example --dtype bf16", dtype_));
}

std::string PlanRequest::setting_text() const {
  const DeviceDescription where = description_of_device();
  const std::string threads = where.device.kind == DeviceKind::cpu
                                  ? fmt::format(", {} threads", threads_ > 0 ? threads_ : default_threads())
                                  : std::string();
  return fmt::format("{}, on {} ({}{})", name(dtype()), where.name, where.figures.source, threads);
}

std::pair<std::int64_t, std::int64_t> parse_tile(const std::string& text) {
  std::int64_t m = 0, n = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, m);
  const bool cross = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
  const auto second = cross ? std::from_chars(first.ptr + 1, end, n) : first;
  constexpr std::int64_t most = 65536;
  if (!cross || second.ec != std::errc() || second.ptr != end || m < 1 || n < 1 || m > most || n > most)
    throw CLI::ValidationError(
        "--tile", fmt::format("expected MxN with sizes from 1 to {}, got \"{}\"; for example --tile 256x128", most, text));
  return {m, n};
}

namespace {

std::vector<MeasuredPass> measured(const PlanAnswer& answer, const Explanation& explanation, const PlanOptions& options) {
  return measure_passes(answer.runs(measured_cpu(), options), explanation);
}

}  // namespace

void print_plan(const PlanRequest& request, const PlanAnswer& answer) {
  if (request.measure) measured_cpu();
  if (!request.sweep.empty()) {
    PlanOptions options = request.options();
    options.advice = false;
    double ridge = 0;
    Sweep sweep = run_sweep(request, answer.title, answer.unit, [&] {
      const Explanation e = answer.explain(options);
      if (!e.gemms.empty()) ridge = e.gemms.front().ridge;
      PlanPoint point = point_of(e, answer.useful());
      if (request.measure)
        for (const MeasuredPass& pass : measured(answer, e, options)) point.measured_us += pass.measured_us;
      return point;
    });
    sweep.bandwidth_gbs = request.description_of_device().figures.bandwidth_gbs;
    sweep.peak_tflops = ridge * sweep.bandwidth_gbs / 1000;
    print_sweep(sweep, request);
    return;
  }
  const Explanation explanation = answer.explain(request.options());
  std::vector<MeasuredPass> passes;
  if (request.measure) passes = measured(answer, explanation, request.options());
  if (!request.json()) {
    fmt::print("{}{}", explanation_text(answer.title(), explanation), request.measure ? measured_text(passes) : "");
    return;
  }
  Json out{{"schema_version", plan_schema_version}};
  out.update(explanation_json(explanation));
  if (request.measure) out["measured"] = measured_json(passes);
  fmt::print("{}\n", out.dump(2));
}

}  // namespace everglow::cli
