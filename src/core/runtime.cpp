// Streams, events, buffers and copies, each through the runtime of its device kind.
#include "core/runtime.hpp"

#include "core/check.hpp"

#include <algorithm>

namespace everglow {

void Stream::synchronize() const { runtime_of(device.kind).synchronize(*this); }

Event::Event(Device device) : device_(device) {
  const auto& runtime = runtime_of(device.kind);
  state_ = std::shared_ptr<void>(runtime.create_event(device.index), runtime.destroy_event);
}
void Event::record(const Stream& stream) {
  require(stream.device == device_, ErrorCode::type_mismatch, "event.record", "stream: expected one of ", to_string(device_),
          ", got one of ", to_string(stream.device));
  runtime_of(device_.kind).record_event(state_.get(), stream);
}
void Event::wait(const Stream& stream) const { runtime_of(device_.kind).wait_event(state_.get(), &stream); }
void Event::synchronize() const { runtime_of(device_.kind).wait_event(state_.get(), nullptr); }

Buffer::Buffer(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {
  const auto& runtime = runtime_of(device.kind);
  void* memory = runtime.allocate(std::max<std::size_t>(bytes, 1), device.index);
  require(memory != nullptr, ErrorCode::out_of_memory, "buffer", "expected ", bytes, " bytes on ", to_string(device), ", got none");
  memory_ = std::shared_ptr<void>(memory, [&runtime, device](void* p) { runtime.release(p, device.index); });
}

void copy(const TensorView& to, const ConstTensorView& from, const Stream& stream) {
  require(to.given() && from.given(), ErrorCode::invalid_argument, "copy", "expected two views, got ", to_string(to), " and ",
          to_string(from));
  const std::span shape(to.shape.data(), static_cast<std::size_t>(std::min(to.rank, max_rank)));
  require_tensor("copy", "to", to, shape, to.dtype, to.device);
  require_tensor("copy", "from", from, shape, to.dtype, from.device);
  require_no_self_overlap("copy", "to", to);
  require_apart("copy", "to", to, "from", from);
  require(stream.device == to.device || stream.device == from.device, ErrorCode::type_mismatch, "copy",
          "stream: expected one of the device of a view, got one of ", to_string(stream.device));
  if (to.elements() == 0) return;
  const DeviceKind kind = std::max(to.device.kind, from.device.kind);
  runtime_of(kind).copy(to, from, stream);
}

std::vector<BackendStatus> backends() {
  std::vector<BackendStatus> out;
  for (const DeviceRuntime* runtime : all_runtimes()) {
    out.push_back(runtime->status());
    if (runtime->libraries == nullptr) continue;
    for (BackendStatus& library : runtime->libraries()) out.push_back(std::move(library));
  }
  return out;
}

}  // namespace everglow
