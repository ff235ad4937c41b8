// The kept figures of this CPU: one file of JSON, which counts as long as CPU, instruction set, threads and version are the same.
#include "bench/record.hpp"
#include "cli/probe.hpp"
#include "cli/written_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <type_traits>

namespace everglow::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Calls f(name, number) for each figure that is measured, in the order of the file.
template <class Figures, class F>
void each_figure(Figures& figures, const F& f) {
  f("units", figures.units), f("clock_ghz", figures.clock_ghz);
  f("f64_tflops", figures.f64_tflops), f("f32_tflops", figures.f32_tflops), f("tf32_tflops", figures.tf32_tflops);
  f("f16_tflops", figures.f16_tflops), f("bf16_tflops", figures.bf16_tflops);
  f("bandwidth_gbs", figures.bandwidth_gbs), f("achieved_math", figures.achieved_math);
  f("achieved_bandwidth", figures.achieved_bandwidth), f("l2_bytes", figures.l2_bytes);
  f("l1.bytes", figures.l1.bytes), f("l1.gbs", figures.l1.gbs), f("l2.bytes", figures.l2.bytes), f("l2.gbs", figures.l2.gbs);
  f("l3.bytes", figures.l3.bytes), f("l3.gbs", figures.l3.gbs);
  auto& cpu = figures.cpu;
  f("threads", cpu.threads), f("speedup", cpu.speedup), f("core_bandwidth_gbs", cpu.core_bandwidth_gbs);
  f("fork_us", cpu.fork_us), f("hand_off_us", cpu.hand_off_us), f("exponential_ns", cpu.exponential_ns);
  constexpr const char *dtypes[] = {"f32", "f16", "bf16"}, *passes[] = {"forward", "activation_gradient", "weight_gradient"};
  constexpr const char *directions[] = {"forward", "backward"}, *cells[] = {"lstm", "gru", "gru_reset_before", "tanh"};
  const auto product = [&](const std::string& name, auto& costs) {
    f(name + ".call_us", costs.call_us), f(name + ".multiply_ns", costs.multiply_ns);
    f(name + ".a_ns", costs.a_ns), f(name + ".b_ns", costs.b_ns), f(name + ".c_ns", costs.c_ns);
  };
  const auto attention = [&](const std::string& name, auto& costs) {
    f(name + ".multiply_ns", costs.multiply_ns), f(name + ".score_ns", costs.score_ns);
    f(name + ".move_ns", costs.move_ns), f(name + ".block_us", costs.block_us);
  };
  for (std::size_t d = 0; d < 3; ++d) {
    const std::string dtype = dtypes[d];
    f("core_tflops." + dtype, cpu.core_tflops[d]);
    for (std::size_t pass = 0; pass < 3; ++pass) {
      product("library." + dtype + "." + passes[pass], cpu.library[d][pass]);
      product("own." + dtype + "." + passes[pass], cpu.own[d][pass]);
    }
    product("step." + dtype, cpu.step[d]);
    f("pack_ns." + dtype + ".as_it_lies", cpu.pack_ns[d][0]), f("pack_ns." + dtype + ".transposed", cpu.pack_ns[d][1]);
    for (std::size_t i = 0; i < 2; ++i) {
      attention("attention." + dtype + "." + directions[i], cpu.attention[d][i]);
      attention("small_heads." + dtype + "." + directions[i], cpu.small_heads[d][i]);
    }
    f("few_queries_ns." + dtype, cpu.few_queries_ns[d]);
  }
  for (std::size_t cell = 0; cell < 4; ++cell)
    for (std::size_t i = 0; i < 2; ++i) f(std::string("cell_ns.") + cells[cell] + "." + directions[i], cpu.cell_ns[cell][i]);
}

/// What figures must agree with to be of use.
Json key_of(int threads) {
  return {{"version", std::string(version())},
          {"cpu", bench::processor()},
          {"isa", DeviceDescription(Device::cpu()).isa},
          {"threads", threads}};
}

std::optional<DeviceFigures>& figures_of_this_run() {
  static std::optional<DeviceFigures> figures;
  return figures;
}

}  // namespace

std::vector<std::pair<std::string, double>> named_figures(const DeviceFigures& figures) {
  std::vector<std::pair<std::string, double>> out;
  each_figure(figures, [&](const std::string& name, const auto& value) { out.emplace_back(name, static_cast<double>(value)); });
  return out;
}

std::filesystem::path probe_file() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  // A relative path is no place for a cache, by the XDG rules.
  if (const auto cache = set("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "everglow" / "probe.json";
  if (const auto home = set("HOME"); home.is_absolute()) return home / ".cache" / "everglow" / "probe.json";
  return {};
}

void write_probe(const ProbeResult& result) {
  const std::filesystem::path file = probe_file();
  if (file.empty()) return;
  Json json = key_of(result.threads), figures;
  for (const auto& [name, value] : named_figures(result.figures)) figures[name] = value;
  json["figures"] = std::move(figures);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  write_file("probe", "XDG_CACHE_HOME", file.string(), json.dump(1) + '\n');
}

std::optional<DeviceFigures> kept_figures(int threads) {
  std::ifstream in(probe_file());
  if (!in) return {};
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("figures") || !json["figures"].is_object()) return {};
  const Json key = key_of(threads);
  for (const auto& [name, value] : key.items())
    if (!json.contains(name) || json[name] != value) return {};
  DeviceFigures out = DeviceDescription(Device::cpu()).figures;
  bool whole = true;
  each_figure(out, [&](const std::string& name, auto& value) {
    const auto found = json["figures"].find(name);
    const bool number = found != json["figures"].end() && found->is_number();
    const double read = number ? found->template get<double>() : -1;
    using T = std::remove_reference_t<decltype(value)>;
    constexpr double most = std::is_integral_v<T> ? static_cast<double>(std::numeric_limits<T>::max()) : 1e15;
    if (!(read >= 0 && read < most)) {
      whole = false;
      return;
    }
    value = static_cast<T>(read);
  });
  if (!whole || out.cpu.threads != threads || out.units < 1) return {};
  out.source = "measured";
  return out;
}

DeviceDescription described_cpu() {
  DeviceDescription out(Device::cpu());
  static const std::optional<DeviceFigures> kept = kept_figures(default_threads());
  const std::optional<DeviceFigures>& figures = figures_of_this_run() ? figures_of_this_run() : kept;
  if (figures) out.figures = *figures;
  return out;
}

void use_figures(const DeviceFigures& figures) { figures_of_this_run() = figures; }

}  // namespace everglow::cli
