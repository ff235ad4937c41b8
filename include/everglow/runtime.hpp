// Streams, events, owned memory and workspaces: what a run needs beside its tensors. No CUDA header is needed to use them.
#pragma once

#include <everglow/device.hpp>
#include <everglow/export.hpp>
#include <everglow/tensor.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace everglow {

/// An order of work on one device. The default is the CPU's, where a run has finished when it returns; a CUDA stream wraps a
/// cudaStream_t that the caller owns.
struct Stream {
  Device device{};
  void* handle = nullptr;
  EVERGLOW_API void synchronize() const;  ///< waits until all work given to the stream is done
};

/// A stream that lives as long as this object and its copies. On a card it is one of its own, which may be captured, and which is
/// in order with the card's default stream; on the CPU it is the CPU's.
class EVERGLOW_API OwnedStream {
 public:
  explicit OwnedStream(Device device);
  const Stream& stream() const noexcept { return stream_; }

 private:
  std::shared_ptr<void> state_;
  Stream stream_;
};

/// Work of a stream that a card was told once and is given again as a whole (a CUDA graph).
class EVERGLOW_API Graph {
 public:
  Graph() = default;  ///< holds nothing
  /// What `work` gives to the stream, recorded without being run. The stream is not a card's default one. The addresses that the
  /// work reads and writes must stay. Throws Error(unsupported) for a CPU, and what `work` throws.
  static Graph capture(const Stream& stream, const std::function<void()>& work);
  bool given() const noexcept { return state_ != nullptr; }
  void launch(const Stream& stream) const;  ///< runs the work after what the stream was given before

 private:
  std::shared_ptr<void> state_;
};

/// A point in a stream; `wait` lets another stream (or the host) wait for it.
class EVERGLOW_API Event {
 public:
  explicit Event(Device device = Device::cpu());
  void record(const Stream& stream);
  void wait(const Stream& stream) const;  ///< the stream goes on after the recorded point
  void synchronize() const;               ///< the host goes on after the recorded point

 private:
  std::shared_ptr<void> state_;
  Device device_;
};

/// Owned memory on a device, aligned to 256 bytes, not initialised. Throws Error(out_of_memory).
class EVERGLOW_API Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t bytes, Device device);
  /// Memory of the host that `device` copies from and to while the host goes on (page-locked); device() is the CPU.
  static Buffer on_host(std::size_t bytes, Device device);
  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
  Device device_;
};

/// Scratch memory that the caller owns and lends to one run at a time. Aligned to 64 bytes at least.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
  Workspace() = default;
  Workspace(void* memory, std::size_t size) : data(memory), bytes(size) {}
  Workspace(const Buffer& buffer) : data(buffer.data()), bytes(buffer.bytes()) {}
};

/// Copies between views of equal shape and dtype, any strides, on or between devices. Views must not overlap. The stream is one of
/// the device of a view.
EVERGLOW_API void copy(const TensorView& to, const ConstTensorView& from, const Stream& stream = {});

/// What a plan needs to know of a device. Device::cpu() and Device::cuda(0) convert to what the machine has. A caller may lower
/// `cores` and `isa`: a plan takes its threads (where neither PlanOptions nor EVERGLOW_THREADS says) and its kernels from here.
struct EVERGLOW_API DeviceDescription {
  std::string name;  ///< "cpu", "cuda:0", or a name of the device table
  Device device;
  bool present = true;      ///< false: plans explain, runs throw
  int cores = 1;            ///< CPU: hardware threads this process may use
  std::string isa;          ///< CPU: "portable", "avx2", "avx512" or "avx512_bf16", after EVERGLOW_ISA
  DeviceFigures figures{};  ///< what predictions are made of; a caller may bring its own
  DeviceDescription(Device device);
  /// A device by name without having it: "cpu", "cuda:0", or one of device_names(). Throws for an unknown name and lists these.
  static DeviceDescription named(std::string_view name);
};

/// The devices that named() knows without having them: "v100-16", ..., "h200", "b200".
EVERGLOW_API std::vector<std::string> device_names();

/// Names of the CPU features that were found, for example {"avx2", "fma", "avx512f", ...}.
EVERGLOW_API std::vector<std::string> cpu_features();

/// One backend of this build and whether it can be used: {"cuda", false, "CUDA not built"}.
struct BackendStatus {
  std::string name{};
  bool usable = false;
  std::string reason{};
};
EVERGLOW_API std::vector<BackendStatus> backends();

}  // namespace everglow
