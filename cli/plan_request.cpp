// The options that all kinds of `everglow plan` share.
#include "cli/plan_request.hpp"

#include "cli/arguments.hpp"
#include "cli/plan_json.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

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
  app.add_flag("--json", json_, "For programs: docs/plan.schema.json describes it");
}

void PlanRequest::size(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& help,
                       const std::string& example) {
  const CLI::Option* option =
      app_.add_option(flag, value, help)->check(whole(static_cast<double>(least), flag + " " + example, most_size));
  sizes_.emplace_back(flag.substr(2), &value);
  required_.push_back(
      {option, fmt::format("expected a whole number of at least {}, got none; for example {} {}", least, flag, example)});
}

void PlanRequest::optional_size(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& help,
                                const std::string& example) {
  app_.add_option(flag, value, help)
      ->capture_default_str()
      ->check(whole(static_cast<double>(least), flag + " " + example, most_size));
  sizes_.emplace_back(flag.substr(2), &value);
}

void PlanRequest::require_sizes() const {
  for (const Required& required : required_)
    if (required.option->count() == 0) throw CLI::ValidationError(required.option->get_name(), required.text);
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
  if (!dtype_.empty()) return parse_dtype(dtype_);
  return device == "cpu" ? DType::f32 : DType::f16;
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

void print_plan(const PlanRequest& request, const std::function<std::string()>& title,
                const std::function<Explanation()>& explain) {
  if (!request.json()) {
    fmt::print("{}", explanation_text(title(), explain()));
    return;
  }
  Json out{{"schema_version", plan_schema_version}};
  out.update(explanation_json(explain()));
  fmt::print("{}\n", out.dump(2));
}

}  // namespace everglow::cli
