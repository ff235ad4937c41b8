// Memory of the translation model: a carver that counts and hands out pieces of one block by the same code, a block that only
// grows, and copies between the host and the model's device.
#pragma once

#include <everglow/everglow.hpp>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace everglow::gnmt {

/// Hands out pieces of a block, each on 256 bytes. Without a block it only counts: its views have no data.
class Carver {
 public:
  Carver(void* base, Device device) : base_(static_cast<std::byte*>(base)), device_(device) {}
  TensorView take(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView take_bytes(std::size_t bytes) { return take(DType::u8, {static_cast<std::int64_t>(bytes)}); }
  std::size_t bytes() const noexcept { return used_; }

 private:
  std::byte* base_;
  Device device_;
  std::size_t used_ = 0;
};

/// One block that grows to what the largest use needs and then stays.
class GrowingBlock {
 public:
  explicit GrowingBlock(Device device) : device_(device) {}
  /// The block's address, with room for `bytes`. What it held is lost where it has to grow.
  void* reserve(std::size_t bytes);

 private:
  Device device_;
  Buffer buffer_;
};

/// Memory of the host for what goes to a card while the host goes on: slots in turn, each free again when its copy has been made.
class Staging {
 public:
  explicit Staging(Device device) : device_(device) {}
  /// Memory for the next `send`; it may wait until the slot is free.
  std::byte* take(std::size_t bytes);
  /// Copies the bytes that were taken last into a view of as many.
  void send(const TensorView& to, const Stream& stream);
  /// Makes all slots at least so large.
  void reserve(std::size_t bytes);

 private:
  struct Slot {
    Buffer memory;
    Event sent;
  };
  void grow(Slot& slot, std::size_t bytes);

  Device device_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

inline Workspace workspace_of(const TensorView& bytes) { return {bytes.data, static_cast<std::size_t>(bytes.elements())}; }

/// Copies host integers into a view of as many elements on the model's device.
void upload(const TensorView& to, const std::int32_t* from, const Stream& stream);
/// The elements of an f32 or f64 view in logical order, on the host.
std::vector<double> download(const ConstTensorView& from, const Stream& stream);

}  // namespace everglow::gnmt
