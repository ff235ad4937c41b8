// What a device kind must offer so that streams, events, buffers and copies work on it. The CPU's stands in cpu_runtime.cpp, that
// of CUDA in src/cuda/common/runtime.cu.
#pragma once

#include <everglow/runtime.hpp>

#include <span>

namespace everglow {

struct DeviceRuntime {
  BackendStatus (*status)() = nullptr;
  void* (*allocate)(std::size_t bytes, int index) = nullptr;  // null where there is no memory
  void (*release)(void* memory, int index) = nullptr;
  void (*copy)(const TensorView& to, const ConstTensorView& from, const Stream& stream) = nullptr;
  void (*synchronize)(const Stream& stream) = nullptr;
  void* (*create_event)(int index) = nullptr;
  void (*destroy_event)(void* event) = nullptr;
  void (*record_event)(void* event, const Stream& stream) = nullptr;
  void (*wait_event)(void* event, const Stream* stream) = nullptr;  // null stream: the host waits
  // Of a card alone; null elsewhere.
  void* (*allocate_on_host)(std::size_t bytes, int index) = nullptr;  // null where there is no memory
  void (*release_on_host)(void* memory, int index) = nullptr;
  void* (*create_stream)(int index) = nullptr;
  void (*destroy_stream)(void* stream) = nullptr;
  void (*begin_capture)(const Stream& stream) = nullptr;
  void* (*end_capture)(const Stream& stream, bool keep) = nullptr;  // a graph; null where it is not kept
  void (*launch_graph)(void* graph, const Stream& stream) = nullptr;
  void (*destroy_graph)(void* graph) = nullptr;

  int (*cores)() = nullptr;                             // processors that this process may use; null: not a CPU
  DeviceFigures (*figures)(int index) = nullptr;        // of a card; capability 0 where there is none of this index
  std::vector<BackendStatus> (*libraries)() = nullptr;  // what it opens at run time; null: nothing
};

extern const DeviceRuntime cpu_runtime;
extern const DeviceRuntime cuda_runtime;  // where CUDA is not built: that of src/ops/cuda/absent.cpp

/// The runtime of a kind; a kind that is not built throws Error(unsupported). Listed in src/ops/backends.cpp.
const DeviceRuntime& runtime_of(DeviceKind kind);
/// All kinds, built or not, in order.
std::span<const DeviceRuntime* const> all_runtimes();

}  // namespace everglow
