// The device of a plan: by name, or with the user's own figures from a file of JSON.
#include "cli/plan_request.hpp"
#include "cli/probe.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <variant>

namespace everglow::cli {
namespace {

using Member = std::variant<int DeviceFigures::*, double DeviceFigures::*, std::int64_t DeviceFigures::*>;
struct Field {
  const char* name;
  Member member;
};
constexpr Field fields[] = {{"units", &DeviceFigures::units},
                            {"capability", &DeviceFigures::capability},
                            {"clock_ghz", &DeviceFigures::clock_ghz},
                            {"f64_tflops", &DeviceFigures::f64_tflops},
                            {"f32_tflops", &DeviceFigures::f32_tflops},
                            {"tf32_tflops", &DeviceFigures::tf32_tflops},
                            {"f16_tflops", &DeviceFigures::f16_tflops},
                            {"bf16_tflops", &DeviceFigures::bf16_tflops},
                            {"bandwidth_gbs", &DeviceFigures::bandwidth_gbs},
                            {"memory_gib", &DeviceFigures::memory_gib},
                            {"l2_bytes", &DeviceFigures::l2_bytes},
                            {"shared_bytes", &DeviceFigures::shared_bytes},
                            {"register_bytes", &DeviceFigures::register_bytes},
                            {"tensor_alignment", &DeviceFigures::tensor_alignment},
                            {"best_alignment", &DeviceFigures::best_alignment},
                            {"largest_cluster", &DeviceFigures::largest_cluster},
                            {"achieved_math", &DeviceFigures::achieved_math},
                            {"achieved_bandwidth", &DeviceFigures::achieved_bandwidth}};
constexpr std::initializer_list<const char*> needed = {"units", "f32_tflops", "bandwidth_gbs"};

[[noreturn]] void wrong(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "device", fmt::format("{}: {}", file, what));
}

void set(DeviceFigures& figures, const Field& field, const nlohmann::json& value, const std::string& file) {
  const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  constexpr double most = 1e15;
  const bool whole = !std::holds_alternative<double DeviceFigures::*>(field.member);
  const double limit = std::holds_alternative<int DeviceFigures::*>(field.member) ? 1e6 : most;
  if (!(number >= 0 && number <= limit) || (whole && number != std::floor(number)))
    wrong(file, fmt::format("{}: expected a {} from 0 to {:g}, got {}", field.name, whole ? "whole number" : "number", limit,
                            value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  std::visit([&](auto member) { figures.*member = static_cast<std::remove_reference_t<decltype(figures.*member)>>(number); },
             field.member);
}

nlohmann::json parsed(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::io, "device", fmt::format("{}: expected a file that can be read", file));
  try {
    nlohmann::json json = nlohmann::json::parse(in);
    if (json.is_object()) return json;
  } catch (const nlohmann::json::exception&) {
    wrong(file, "expected JSON, for example {\"based_on\": \"h200\", \"name\": \"mine\", \"bandwidth_gbs\": 4000}");
  }
  wrong(file, "expected an object, for example {\"based_on\": \"h200\", \"name\": \"mine\", \"bandwidth_gbs\": 4000}");
}

DeviceDescription from_file(const std::string& file) {
  const nlohmann::json json = parsed(file);
  const bool based = json.contains("based_on");
  if (based && !json["based_on"].is_string()) wrong(file, "based_on: expected the name of a device, for example \"h200\"");
  DeviceDescription out = DeviceDescription::named(based ? json["based_on"].get<std::string>() : "h200");
  if (out.device.kind == DeviceKind::cpu) wrong(file, "based_on: expected a GPU, for example \"h200\"");
  if (!based) {
    out.figures = {};
    for (const char* name : needed)
      if (!json.contains(name)) wrong(file, fmt::format("{}: expected it, or based_on, got neither", name));
    out.figures.capability = 80, out.figures.tensor_alignment = 16, out.figures.best_alignment = 128;
    out.figures.shared_bytes = 100 << 10, out.figures.register_bytes = 256 << 10;
  }
  out.present = false;
  out.name = file;
  out.figures.source = file;
  for (const auto& [key, value] : json.items()) {
    if (key == "based_on") continue;
    if (key == "name") {
      if (!value.is_string()) wrong(file, "name: expected a text, for example \"mine\"");
      out.name = value.get<std::string>();
      continue;
    }
    const auto* field = std::find_if(std::begin(fields), std::end(fields), [&](const Field& f) { return key == f.name; });
    if (field == std::end(fields)) {
      std::string names = "name, based_on";
      for (const Field& f : fields) names += fmt::format(", {}", f.name);
      wrong(file, fmt::format("{}: no such field; expected {}", key, names));
    }
    set(out.figures, *field, value, file);
  }
  if (out.figures.units < 1 || out.figures.f32_tflops <= 0 || out.figures.bandwidth_gbs <= 0 || out.figures.capability < 1)
    wrong(file, "expected units, f32_tflops, bandwidth_gbs and capability above 0");
  if (out.figures.achieved_math <= 0 || out.figures.achieved_math > 1 || out.figures.achieved_bandwidth <= 0 ||
      out.figures.achieved_bandwidth > 1)
    wrong(file, "expected achieved_math and achieved_bandwidth above 0 and at most 1");
  return out;
}

}  // namespace

DeviceDescription read_device(const std::string& name) {
  if (name.ends_with(".json")) return from_file(name);
  if (name == "cpu") return described_cpu();
  if (name.starts_with("cuda"))
    for (const BackendStatus& backend : backends())
      if (backend.name == "cuda" && !backend.usable)
        throw Error(ErrorCode::unsupported, "device",
                    fmt::format("--device {}: {}; a card that is not here is planned by its name, for example --device h200", name,
                                backend.reason));
  return DeviceDescription::named(name);
}

}  // namespace everglow::cli
