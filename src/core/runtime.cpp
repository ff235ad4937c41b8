// Streams, events, buffers and copies, each through the runtime of its device kind.
#include "core/runtime.hpp"

#include "core/check.hpp"

#include <algorithm>

namespace everglow {

void Stream::synchronize() const { runtime_of(device.kind).synchronize(*this); }

OwnedStream::OwnedStream(Device device) : stream_{device} {
  const auto& runtime = runtime_of(device.kind);
  if (runtime.create_stream == nullptr) return;
  state_ = std::shared_ptr<void>(runtime.create_stream(device.index), runtime.destroy_stream);
  stream_.handle = state_.get();
}

Graph Graph::capture(const Stream& stream, const std::function<void()>& work) {
  const auto& runtime = runtime_of(stream.device.kind);
  require(runtime.begin_capture != nullptr, ErrorCode::unsupported, "graph.capture", "stream: expected one of a card, got one of ",
          to_string(stream.device));
  require(stream.handle != nullptr, ErrorCode::invalid_argument, "graph.capture",
          "stream: expected one of its own (OwnedStream), got the default stream of ", to_string(stream.device));
  runtime.begin_capture(stream);
  try {
    work();
  } catch (...) {
    runtime.end_capture(stream, false);
    throw;
  }
  Graph graph;
  graph.state_ = std::shared_ptr<void>(runtime.end_capture(stream, true), runtime.destroy_graph);
  return graph;
}

void Graph::launch(const Stream& stream) const {
  require(given(), ErrorCode::invalid_argument, "graph.launch", "expected a captured graph, got none");
  const auto& runtime = runtime_of(stream.device.kind);
  require(runtime.launch_graph != nullptr, ErrorCode::type_mismatch, "graph.launch", "stream: expected one of a card, got one of ",
          to_string(stream.device));
  runtime.launch_graph(state_.get(), stream);
}

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

Buffer Buffer::on_host(std::size_t bytes, Device device) {
  const auto& runtime = runtime_of(device.kind);
  if (runtime.allocate_on_host == nullptr) return {bytes, Device::cpu()};
  void* memory = runtime.allocate_on_host(std::max<std::size_t>(bytes, 1), device.index);
  require(memory != nullptr, ErrorCode::out_of_memory, "buffer", "expected ", bytes, " page-locked bytes of the host, got none");
  Buffer out;
  out.bytes_ = bytes;
  out.memory_ = std::shared_ptr<void>(memory, [&runtime, device](void* p) { runtime.release_on_host(p, device.index); });
  return out;
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
