// everglow info: what this build is, what the machine has, and which rows each layer may choose from.
#include "cli/commands.hpp"
#include "cli/layers.hpp"

#include <everglow/everglow.hpp>

#include <fmt/format.h>

namespace everglow::cli {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

void print_build() {
  fmt::print("everglow      {}\n", version());
  fmt::print("compiler      {}\n", compiler());
  fmt::print("build type    {}\n", EVERGLOW_BUILD_TYPE);
  fmt::print("oneDNN        {}\n", EVERGLOW_BUILD_ONEDNN ? "yes" : "no");
}

void print_machine() {
  const DeviceDescription cpu(Device::cpu());
  fmt::print("cores         {}\n", cpu.cores);
  fmt::print("CPU features  {}\n", fmt::join(cpu_features(), " "));
  fmt::print("chosen        {}\n", cpu.isa);
  for (const BackendStatus& backend : backends())
    fmt::print("backend       {}: {}, {}\n", backend.name, backend.usable ? "usable" : "not usable", backend.reason);
}

void print_kernels() {
  for (const char* layer : layers)
    for (const auto& [name, kind] : {std::pair("cpu", DeviceKind::cpu), std::pair("cuda", DeviceKind::cuda)})
      fmt::print("{:<10} {:<5} {}\n", layer, name, fmt::join(kernels(layer, kind), ", "));
}

}  // namespace

void add_info(CLI::App& tool, int& status) {
  CLI::App& app = *tool.add_subcommand("info", "Show the build, the CPU and the kernels");
  app.footer("everglow info");
  app.callback([&status] {
    print_build();
    print_machine();
    fmt::print("\nkernels, in the order in which they are asked\n");
    print_kernels();
    status = 0;
  });
}

}  // namespace everglow::cli
