// The device kinds of this build, in order. A kind that is not built answers with its reason and throws when used.
#include "core/dispatch.hpp"
#include "core/runtime.hpp"
#include "ops/tables.hpp"

#include <array>

namespace everglow {
namespace {

constexpr std::array<const DeviceRuntime*, 2> runtimes{&cpu_runtime, &cuda_runtime};

template <class Row>
std::vector<std::string> names(std::span<const Row* const> table) {
  std::vector<std::string> out;
  for (const Row* row : table) out.emplace_back(row->name);
  return out;
}

}  // namespace

std::span<const DeviceRuntime* const> all_runtimes() { return runtimes; }

const DeviceRuntime& runtime_of(DeviceKind kind) {
  const DeviceRuntime& runtime = *runtimes[static_cast<std::size_t>(kind)];
  if (kind == DeviceKind::cpu) return runtime;
  const BackendStatus status = runtime.status();
  if (!status.usable) throw Error(ErrorCode::unsupported, "device", status.reason);
  return runtime;
}

std::vector<std::string> kernels(std::string_view layer, DeviceKind device) {
  if (layer == "linear") return names(linear_table(device));
  if (layer == "recurrent") return names(recurrent_table(device));
  if (layer == "attention") return names(attention_table(device));
  if (layer == "softmax") return names(softmax_table(device));
  if (layer == "embedding") return names(embedding_table(device));
  if (layer == "loss") return names(loss_table(device));
  if (layer == "pointwise") return names(pointwise_table(device));
  if (layer == "adam") return names(adam_table(device));
  throw Error(
      ErrorCode::invalid_argument, "kernels",
      text("layer: expected linear, recurrent, attention, softmax, embedding, loss, pointwise or adam, got \"", layer, '"'));
}

std::string_view version() noexcept { return EVERGLOW_VERSION; }

}  // namespace everglow
