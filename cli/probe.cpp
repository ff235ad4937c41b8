// everglow probe: measures this CPU, keeps the figures for predictions, and shows them.
#include "cli/probe.hpp"

#include "bench/record.hpp"
#include "cli/bar.hpp"
#include "cli/commands.hpp"
#include "cli/plan_json.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

namespace everglow::cli {

Probe::Probe(OperandMemory& memory, int threads)
    : threads_(threads), products_(memory, threads), layers_(memory), machine_(memory, threads) {}

void Probe::lap() {
  machine_.lap();
  products_.lap();
  layers_.lap();
}

ProbeResult Probe::result() const {
  const DeviceDescription cpu(Device::cpu());
  ProbeResult out{.cpu = bench::processor(), .isa = cpu.isa, .threads = threads_, .figures = cpu.figures, .levels = {}};
  out.figures.source = "measured";
  out.figures.units = threads_;
  out.figures.achieved_bandwidth = 1;  // what a loop over memory reached
  products_.put(out.figures);
  layers_.put(out.figures);
  machine_.put(out.figures);
  out.levels = machine_.levels();
  out.one_tflops = machine_.one_tflops(), out.all_tflops = machine_.all_tflops();
  out.product_tflops = products_.tflops();
  return out;
}

ProbeResult probe_cpu(OperandMemory& memory, int threads) {
  constexpr int laps = 2;
  CountBar bar(stderr, "lap", laps);
  bar.show(0, "measuring this CPU");
  Probe probe(memory, threads);
  for (int lap = 0; lap < laps; ++lap) {
    bar.show(lap, "measuring this CPU");
    probe.lap();
  }
  return probe.result();
}

namespace {

Json probe_json(const ProbeResult& r) {
  Json figures, levels = Json::array();
  for (const auto& [name, value] : named_figures(r.figures)) figures[name] = value;
  for (const auto& level : r.levels)
    levels.push_back({{"name", level.name}, {"bytes", level.bytes}, {"one_gbs", level.one_gbs}, {"all_gbs", level.all_gbs}});
  return {{"schema_version", plan_schema_version},
          {"probe", {{"cpu", r.cpu}, {"isa", r.isa}, {"threads", r.threads}, {"levels", levels}, {"figures", figures}}}};
}

std::string probe_text(const ProbeResult& r) {
  const CpuFigures& cpu = r.figures.cpu;
  const std::string threads = fmt::format("{} thread{}", r.threads, r.threads == 1 ? "" : "s");
  std::string out = fmt::format("{}, {}, {}\n\n", r.cpu, r.isa, threads);
  const auto gflops = [](double tflops) { return fmt::format("{:.0f} GFLOP/s", 1000 * tflops); };
  const auto speed = [](double gbs) { return fmt::format("{:.1f} GB/s", gbs); };
  std::vector<std::vector<std::string>> rows{{"", "1 thread", threads}};
  rows.push_back({"f32 in registers", gflops(r.one_tflops), gflops(r.all_tflops)});
  const char* names[] = {"f32 product", "f16 product", "bf16 product"};
  for (std::size_t d = 0; d < 3; ++d) {
    rows.push_back({names[d], gflops(cpu.core_tflops[d]), gflops(r.product_tflops[d])});
  }
  for (const auto& level : r.levels)
    rows.push_back({fmt::format("read {} ({})", level.name, bytes_text(static_cast<double>(level.bytes))), speed(level.one_gbs),
                    speed(level.all_gbs)});
  out += aligned_table(rows);
  if (r.threads > 1)
    out += fmt::format("\na flag there and back {:.2f} us, waking the threads {:.1f} us\n", cpu.hand_off_us, cpu.fork_us);
  const char* cells[] = {"lstm", "gru", "gru_reset_before", "tanh"};
  rows = {{"1 thread", "forward", "backward"}};
  const auto ns = [](double value) { return fmt::format("{:.2f} ns", value); };
  for (std::size_t i = 0; i < std::size(cells); ++i)
    rows.push_back({fmt::format("hidden unit, {}", cells[i]), ns(cpu.cell_ns[i][0]), ns(cpu.cell_ns[i][1])});
  rows.push_back({"score of attention", ns(cpu.attention[0][0].score_ns), ns(cpu.attention[0][1].score_ns)});
  rows.push_back({"exponential", ns(cpu.exponential_ns), ""});
  return out + "\n" + aligned_table(rows);
}

}  // namespace

void add_probe(CLI::App& tool, int& status) {
  struct Arguments {
    bool json = false, keep = true;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::App& app = *tool.add_subcommand("probe", "Measure this CPU in a second or two; `everglow plan` predicts from it");
  app.footer("everglow probe");
  app.add_flag("--json", a->json, "For programs: docs/plan.schema.json describes it");
  app.add_flag("!--forget", a->keep, "Do not keep the figures for later plans");
  app.callback([a, &status] {
    OperandMemory memory;
    const ProbeResult result = probe_cpu(memory, default_threads());
    if (a->json)
      fmt::print("{}\n", probe_json(result).dump(2));
    else
      fmt::print("{}", probe_text(result));
    if (a->keep) write_probe(result);
    if (a->keep && !a->json && !probe_file().empty()) fmt::print("\nkept in {}\n", probe_file().string());
    status = 0;
  });
}

}  // namespace everglow::cli
