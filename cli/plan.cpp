// everglow plan: what a layer of these sizes does on a device, what it costs, and what would make it faster. Needs no GPU.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/plan_measure.hpp"
#include "cli/plan_request.hpp"

#include <everglow/everglow.hpp>

#include <fmt/format.h>

#include <memory>

namespace everglow::cli {

void add_plan(CLI::App& tool, int& status) {
  const std::string text = fmt::format(
      "Explain a layer: its products, what stays on chip, what it costs, what would make it faster. Devices: cpu, cuda:N, {}",
      fmt::join(device_names(), ", "));
  CLI::App& app = *tool.add_subcommand("plan", text);
  app.require_subcommand(0, 1);
  const auto self_test = std::make_shared<SelfTest>();
  CLI::Option* asked = app.add_flag("--self-test", self_test->asked,
                                    "Measure this CPU, and 40 linear, 20 recurrent and 20 attention problems beside their plans");
  app.add_option("--problems", self_test->problems, "With --self-test: at most so many of each layer")
      ->needs(asked)
      ->check(whole(1, "--problems 3", 1000));
  app.add_option("--out", self_test->out, "With --self-test: write a line of JSON for each pass into this file")
      ->needs(asked)
      ->check(file_name());
  app.add_flag("--json", self_test->json, "With --self-test: for programs")->needs(asked);
  app.callback([&app, &status, self_test] {
    if (!app.get_subcommands().empty()) return;
    if (!self_test->asked) throw CLI::RequiredError("A subcommand");
    run_self_test(*self_test);
    status = 0;
  });
  app.footer("everglow plan linear --batch 5120 --inputs 1024 --outputs 33708 --dtype f16 --device h200");
  add_plan_linear(app, status);
  add_plan_recurrent(app, status);
  add_plan_attention(app, status);
  add_plan_gnmt(app, status);
}

}  // namespace everglow::cli
