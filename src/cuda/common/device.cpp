// Cards: what the driver says of them.
#include "cuda/common/device.hpp"

#include "plan/devices.hpp"

#include <vector>

namespace everglow::cuda {
namespace {

Cards count_cards() {
  Cards out;
  const cudaError_t fault = cudaGetDeviceCount(&out.count);
  if (fault == cudaSuccess && out.count > 0) return out;
  cudaGetLastError();  // or the next check would report it again
  out.count = 0;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0)
    out.reason = "CUDA: no driver was found (libcuda.so.1)";
  else if (fault == cudaErrorInsufficientDriver)
    out.reason = text("CUDA: the driver serves version ", driver / 1000, '.', driver % 1000 / 10, ", this build needs ",
                      CUDART_VERSION / 1000, '.', CUDART_VERSION % 1000 / 10);
  else
    out.reason = text("CUDA: no card was found (", cudaGetErrorString(fault), ')');
  return out;
}

std::int64_t attribute(cudaDeviceAttr what, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, index), "device");
  return value;
}

std::string capability_text(int capability) { return text(capability / 10, '.', capability % 10); }

DeviceFigures read_figures(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "device");
  const plan::NamedDevice* known = plan::find_card(properties.name);
  DeviceFigures out;
  if (known != nullptr) {
    out = plan::figures_of(*known);
  } else {
    // Two transfers a clock on each line of the bus; both numbers are in kHz and bits.
    const double bandwidth =
        2e-6 * static_cast<double>(attribute(cudaDevAttrMemoryClockRate, index)) * properties.memoryBusWidth / 8;
    out = plan::estimate_gpu({.units = properties.multiProcessorCount,
                              .capability = 10 * properties.major + properties.minor,
                              .clock_ghz = 1e-6 * static_cast<double>(attribute(cudaDevAttrClockRate, index)),
                              .bandwidth_gbs = bandwidth});
  }
  out.units = properties.multiProcessorCount;
  out.capability = 10 * properties.major + properties.minor;
  out.memory_gib = static_cast<double>(properties.totalGlobalMem) / (1024.0 * 1024 * 1024);
  out.l2_bytes = properties.l2CacheSize;
  out.shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  return out;
}

}  // namespace

const Cards& cards() {
  static const Cards found = count_cards();
  return found;
}

std::string why_unusable(int index) {
  const Cards& all = cards();
  if (all.count == 0) return all.reason;
  if (index >= 0 && index < all.count) return {};
  return text("CUDA: expected a card of cuda:0", all.count > 1 ? text(" ... cuda:", all.count - 1) : std::string(),
              ", got cuda:", index);
}

DeviceFigures figures_of_card(int index) {
  if (!why_unusable(index).empty()) return {};
  // Every description of a card asks, and nothing of it changes while a program runs.
  static const std::vector<DeviceFigures> all = [] {
    std::vector<DeviceFigures> out;
    for (int i = 0; i < cards().count; ++i) out.push_back(read_figures(i));
    return out;
  }();
  return all[static_cast<std::size_t>(index)];
}

Verdict accept_device(const DeviceDescription& device) {
  if (device.figures.capability >= least_capability) return accept();
  const std::string reason = device.present ? why_unusable(device.device.index) : std::string();
  if (!reason.empty()) return decline(reason);
  return decline("needs CUDA compute capability ", capability_text(least_capability), " or newer, ", device.name, " has ",
                 capability_text(device.figures.capability));
}

void check(cudaError_t fault, std::string_view where) {
  if (fault == cudaSuccess) return;
  cudaGetLastError();
  throw Error(fault == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device, where,
              text("expected no fault of CUDA, got ", cudaGetErrorName(fault), ": ", cudaGetErrorString(fault)));
}

CurrentCard::CurrentCard(int index) : index_(index) {
  const std::string reason = why_unusable(index);
  if (!reason.empty()) throw Error(ErrorCode::unsupported, "device", reason);
  check(cudaGetDevice(&before_), "device");
  if (before_ != index) check(cudaSetDevice(index), "device");
}

CurrentCard::~CurrentCard() {
  if (before_ != index_) cudaSetDevice(before_);
}

}  // namespace everglow::cuda
