// Descriptions of devices: what the machine has, and what the device table knows by name.
#include <everglow/runtime.hpp>

#include "core/cpu_facts.hpp"
#include "core/isa.hpp"
#include "core/runtime.hpp"
#include "core/text.hpp"
#include "plan/devices.hpp"

namespace everglow {
namespace {

const DeviceFigures& figures_of_cpu() {
  static const DeviceFigures figures = [] {
    const SystemFacts& system = system_facts();
    const Isa isa = chosen_isa();
    const bool widest = isa >= Isa::avx512, pairs = isa == Isa::avx512_bf16;
    return plan::estimate_cpu({.cores = cpu_runtime.cores(),
                               .f32_lanes = widest             ? 16
                                            : isa == Isa::avx2 ? 8
                                                               : 4,
                               .fused = isa != Isa::portable,
                               .amx_bf16 = pairs && system.amx_bf16,
                               .avx512_bf16 = pairs,
                               .clock_ghz = system.clock_ghz,
                               .l1_bytes = system.l1_bytes,
                               .l2_bytes = system.l2_bytes,
                               .l3_bytes = system.l3_bytes});
  }();
  return figures;
}

}  // namespace

DeviceDescription::DeviceDescription(Device where) : name(to_string(where)), device(where) {
  if (where.kind == DeviceKind::cuda) {
    if (cuda_runtime.figures != nullptr) figures = cuda_runtime.figures(where.index);
    return;
  }
  cores = cpu_runtime.cores();
  isa = everglow::name(chosen_isa());
  figures = figures_of_cpu();
}

DeviceDescription DeviceDescription::named(std::string_view wish) {
  if (wish == "cpu") return {Device::cpu()};
  if (wish.starts_with("cuda")) return {parse_device(wish)};
  const plan::NamedDevice* known = plan::find_device(wish);
  if (known == nullptr) {
    std::string names;
    for (const std::string& name : device_names()) names += text(", ", name);
    throw Error(ErrorCode::invalid_argument, "device",
                text("expected cpu, cuda:N", names, " (for example h200), got \"", wish, '"'));
  }
  DeviceDescription out(Device::cuda(0));
  out.name = wish;
  out.present = false;
  out.figures = plan::figures_of(*known);
  return out;
}

std::vector<std::string> device_names() {
  std::vector<std::string> out;
  for (const plan::NamedDevice& device : plan::named_devices()) out.emplace_back(device.name);
  return out;
}

}  // namespace everglow
