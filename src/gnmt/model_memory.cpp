// Memory of the translation model.
#include "model_memory.hpp"

#include <algorithm>

namespace everglow::gnmt {

TensorView Carver::take(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape, device_);
  if (base_ != nullptr) view.data = base_ + used_;
  constexpr std::size_t alignment = 256;
  const std::size_t bytes = static_cast<std::size_t>(view.elements()) * size_of(dtype);
  used_ += (bytes + alignment - 1) / alignment * alignment;
  return view;
}

void* GrowingBlock::reserve(std::size_t bytes) {
  if (buffer_.data() == nullptr || buffer_.bytes() < bytes) {
    const std::size_t grown = std::max(bytes, buffer_.bytes() + buffer_.bytes() / 4);
    buffer_ = {};  // give the old block back before the new one is asked for
    buffer_ = Buffer(std::max<std::size_t>(grown, 256), device_);
  }
  return buffer_.data();
}

void Staging::grow(Slot& slot, std::size_t bytes) {
  if (slot.memory.data() != nullptr && slot.memory.bytes() >= bytes) return;
  slot.memory = Buffer::on_host(std::max(bytes, slot.memory.bytes() + slot.memory.bytes() / 2), device_);
}

void Staging::reserve(std::size_t bytes) {
  constexpr std::size_t most = 4;  // a slot is free when its step begins, not when it ends
  while (slots_.size() < most) slots_.push_back({.memory = {}, .sent = Event(device_)});
  for (Slot& slot : slots_) {
    slot.sent.synchronize();
    grow(slot, bytes);
  }
}

std::byte* Staging::take(std::size_t bytes) {
  if (slots_.empty()) reserve(bytes);
  next_ = (next_ + 1) % slots_.size();
  Slot& slot = slots_[next_];
  slot.sent.synchronize();
  grow(slot, bytes);
  return static_cast<std::byte*>(slot.memory.data());
}

void Staging::send(const TensorView& to, const Stream& stream) {
  Slot& slot = slots_[next_];
  copy(to, ConstTensorView(slot.memory.data(), DType::u8, {to.elements()}), stream);
  slot.sent.record(stream);
}

void upload(const TensorView& to, const std::int32_t* from, const Stream& stream) {
  ConstTensorView host(from, to.dtype, std::span<const std::int64_t>(to.shape.data(), static_cast<std::size_t>(to.rank)));
  copy(to, host, stream);
}

std::vector<double> download(const ConstTensorView& from, const Stream& stream) {
  const std::span<const std::int64_t> shape(from.shape.data(), static_cast<std::size_t>(from.rank));
  std::vector<double> values(static_cast<std::size_t>(from.elements()));
  if (from.dtype == DType::f64) {
    copy(TensorView(values.data(), DType::f64, shape), from, stream);
    stream.synchronize();
    return values;
  }
  std::vector<float> narrow(values.size());
  copy(TensorView(narrow.data(), DType::f32, shape), from, stream);
  stream.synchronize();
  std::copy(narrow.begin(), narrow.end(), values.begin());
  return values;
}

}  // namespace everglow::gnmt
