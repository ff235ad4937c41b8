// everglow plan: what a layer of these sizes does on a device, what it costs, and what would make it faster. Needs no GPU.
#include "cli/commands.hpp"
#include "cli/plan_request.hpp"

#include <everglow/everglow.hpp>

#include <fmt/format.h>

namespace everglow::cli {

void add_plan(CLI::App& tool, int& status) {
  const std::string text = fmt::format(
      "Explain a layer: its products, what stays on chip, what it costs, what would make it faster. Devices: cpu, cuda:N, {}",
      fmt::join(device_names(), ", "));
  CLI::App& app = *tool.add_subcommand("plan", text);
  app.require_subcommand(1);
  app.footer("everglow plan linear --batch 5120 --inputs 1024 --outputs 33708 --dtype f16 --device h200");
  add_plan_linear(app, status);
  add_plan_recurrent(app, status);
  add_plan_attention(app, status);
  add_plan_gnmt(app, status);
}

}  // namespace everglow::cli
