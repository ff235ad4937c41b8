// Views of tensors: a pointer, a dtype, a device, a shape and strides in elements, held by value. A view owns nothing.
// A default-constructed view (rank -1) means "not given"; a view with a zero dimension is given, whatever its pointer.
#pragma once

#include <everglow/error.hpp>
#include <everglow/export.hpp>
#include <everglow/storage.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace everglow {

/// Element types. f64 is served by the reference rows only; i32, i64 and u8 hold indices, lengths and masks.
enum class DType : std::uint8_t { f32, f16, bf16, f64, i32, i64, u8 };

EVERGLOW_API std::size_t size_of(DType dtype) noexcept;    ///< bytes of one element
EVERGLOW_API std::string_view name(DType dtype) noexcept;  ///< "f32", "f16", "bf16", "f64", "i32", "i64", "u8"
EVERGLOW_API DType parse_dtype(std::string_view text);     ///< these, fp32, fp16, half, float32, float16, bfloat16; else throws

EVERGLOW_API float to_float(Half value) noexcept;
EVERGLOW_API float to_float(BFloat16 value) noexcept;
EVERGLOW_API Half to_half(float value) noexcept;
EVERGLOW_API BFloat16 to_bfloat16(float value) noexcept;

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Where memory lives: the CPU, or one CUDA card by its index.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {DeviceKind::cuda, index}; }
  friend bool operator==(const Device&, const Device&) = default;
};
EVERGLOW_API std::string to_string(Device device);        ///< "cpu" or "cuda:0"
EVERGLOW_API Device parse_device(std::string_view text);  ///< "cpu", "cuda" (card 0) or "cuda:N"; else throws

inline constexpr int max_rank = 6;

template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = -1;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};  // in elements

  BasicTensorView() = default;
  /// A dense row-major view. Throws for a rank above max_rank or a negative size.
  BasicTensorView(Void* pointer, DType type, std::span<const std::int64_t> sizes, Device where = Device::cpu())
      : data(pointer), dtype(type), device(where), rank(static_cast<int>(sizes.size())) {
    if (sizes.size() > max_rank) throw Error(ErrorCode::invalid_argument, "tensor.view", "expected a rank of at most 6");
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (sizes[i] < 0) throw Error(ErrorCode::invalid_argument, "tensor.view", "expected sizes of at least 0");
      shape[i] = sizes[i];
      strides[i] = stride;
      stride *= sizes[i];
    }
  }
  BasicTensorView(Void* pointer, DType type, std::initializer_list<std::int64_t> sizes, Device where = Device::cpu())
      : BasicTensorView(pointer, type, std::span(sizes.begin(), sizes.size()), where) {}
  /// A mutable view reads as a const one.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>) BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data), dtype(other.dtype), device(other.device), rank(other.rank), shape(other.shape), strides(other.strides) {}

  bool given() const noexcept { return rank >= 0; }
  std::int64_t size(int dim) const noexcept { return shape[dim < 0 ? dim + rank : dim]; }      ///< -rank <= dim < rank
  std::int64_t stride(int dim) const noexcept { return strides[dim < 0 ? dim + rank : dim]; }  ///< likewise
  std::int64_t elements() const noexcept {
    std::int64_t n = rank < 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  /// True where the elements lie row-major without gaps (dimensions of size 1 may have any stride).
  bool dense() const noexcept {
    std::int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }
  /// The part [begin, begin + length) of one dimension; same memory. Throws where it does not fit.
  BasicTensorView narrow(int dim, std::int64_t begin, std::int64_t length) const {
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank || begin < 0 || length < 0 || length > shape[dim] - begin)
      throw Error(ErrorCode::invalid_argument, "tensor.narrow", "expected a part that lies inside the view");
    BasicTensorView part = *this;
    if (part.data)
      part.data = reinterpret_cast<Void*>(reinterpret_cast<std::uintptr_t>(data) +
                                          static_cast<std::uintptr_t>(begin * strides[dim]) * size_of(dtype));
    part.shape[dim] = length;
    return part;
  }
  /// The same dense elements under another shape. Throws where the view has gaps or the counts differ.
  BasicTensorView reshaped(std::initializer_list<std::int64_t> sizes) const {
    BasicTensorView other(data, dtype, sizes, device);
    if (!dense() || other.elements() != elements())
      throw Error(ErrorCode::invalid_argument, "tensor.reshaped", "expected a dense view and an equal count of elements");
    return other;
  }
  /// One dimension as two, `outer` x `inner`; keeps strides, so the view may have gaps. Throws where outer * inner differs.
  BasicTensorView split(int dim, std::int64_t outer, std::int64_t inner) const {
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank || rank >= max_rank || outer < 0 || inner < 0 || outer * inner != shape[dim])
      throw Error(ErrorCode::invalid_argument, "tensor.split", "expected outer x inner to equal the dimension");
    BasicTensorView other = *this;
    for (int i = rank; i > dim + 1; --i) other.shape[i] = shape[i - 1], other.strides[i] = strides[i - 1];
    other.rank = rank + 1;
    other.shape[dim] = outer, other.shape[dim + 1] = inner;
    other.strides[dim] = inner * strides[dim], other.strides[dim + 1] = strides[dim];
    return other;
  }
  /// Two dimensions exchanged. Throws where the view has no such dimension.
  BasicTensorView transposed(int a, int b) const {
    BasicTensorView other = *this;
    if (a < 0) a += rank;
    if (b < 0) b += rank;
    if (a < 0 || b < 0 || a >= rank || b >= rank)
      throw Error(ErrorCode::invalid_argument, "tensor.transposed", "expected two dimensions of the view");
    other.shape[a] = shape[b], other.shape[b] = shape[a];
    other.strides[a] = strides[b], other.strides[b] = strides[a];
    return other;
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// "[20, 32, 256] f32 cpu", or "not given".
EVERGLOW_API std::string to_string(const ConstTensorView& view);

}  // namespace everglow
