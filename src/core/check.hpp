// Checks of arguments. Each throws an Error that names the argument, what was expected and what came.
#pragma once

#include <everglow/error.hpp>
#include <everglow/runtime.hpp>
#include <everglow/tensor.hpp>

#include "core/text.hpp"

#include <initializer_list>
#include <span>

namespace everglow {

template <class... Parts>
void require(bool condition, ErrorCode code, std::string_view where, const Parts&... parts) {
  if (!condition) throw Error(code, where, text(parts...));
}

/// A given view must have this shape, dtype and device. Where a size is -1, any is right. A null pointer with elements throws.
void require_tensor(std::string_view where, std::string_view argument, const ConstTensorView& view,
                    std::span<const std::int64_t> shape, DType dtype, Device device);
inline void require_tensor(std::string_view where, std::string_view argument, const ConstTensorView& view,
                           std::initializer_list<std::int64_t> shape, DType dtype, Device device) {
  require_tensor(where, argument, view, std::span(shape.begin(), shape.size()), dtype, device);
}
/// As require_tensor where the view is given; nothing where it is not.
inline void require_optional(std::string_view where, std::string_view argument, const ConstTensorView& view,
                             std::initializer_list<std::int64_t> shape, DType dtype, Device device) {
  if (view.given()) require_tensor(where, argument, view, shape, dtype, device);
}
/// As require_optional for what is f32 or the storage type.
void require_f32_or_storage(std::string_view where, std::string_view argument, const ConstTensorView& view,
                            std::initializer_list<std::int64_t> shape, DType storage, Device device);
/// The same for a weight gradient, whose elements must not share memory.
void require_gradient(std::string_view where, std::string_view argument, const ConstTensorView& view,
                      std::initializer_list<std::int64_t> shape, DType storage, Device device);
/// Sizes whose product is counted in elements must leave room for every later product below 2^63.
void require_countable(std::string_view where, std::string_view arguments, std::initializer_list<std::int64_t> sizes);
/// The last dimension must be contiguous.
void require_unit_stride(std::string_view where, std::string_view argument, const ConstTensorView& view);
/// Elements of a tensor that is written must not share memory: |stride| of each dimension covers the ones inside it.
void require_no_self_overlap(std::string_view where, std::string_view argument, const ConstTensorView& view);
/// Two tensors of which one is written must not share a byte.
void require_apart(std::string_view where, std::string_view written, const ConstTensorView& a, std::string_view other,
                   const ConstTensorView& b);
struct NamedView {
  std::string_view name;
  ConstTensorView view;
};
/// What is written shares no byte with itself, with what is only read, or with anything else that is written.
void require_all_apart(std::string_view where, std::span<const NamedView> written, std::span<const NamedView> only_read);
/// Packed weights or a reserve: at least so many bytes on an address that is a multiple of 64.
void require_bytes(std::string_view where, std::string_view argument, const ConstTensorView& view, std::size_t least,
                   Device device);
/// Where the random numbers of dropout come from: two numbers, or `dropout_state`, i64 [2] on the device, and not both. A run that
/// drops nothing must bring neither.
struct DropoutSource {
  std::uint64_t seed = 0, offset = 0;
  ConstTensorView state{};
};
void require_dropout(std::string_view where, bool drops, const DropoutSource& source, Device device);
/// The tensors of a checked run on a CPU with seed and offset as numbers. A row never sees dropout_state there.
template <class Tensors>
Tensors with_dropout_numbers(const Tensors& tensors) {
  Tensors out = tensors;
  if (!out.dropout_state.given()) return out;
  const auto* state = static_cast<const std::int64_t*>(out.dropout_state.data);
  out.dropout_seed = static_cast<std::uint64_t>(state[0]);
  out.dropout_offset = static_cast<std::uint64_t>(state[out.dropout_state.strides[0]]);
  out.dropout_state = {};
  return out;
}
/// run(tensors) as a row may see them: copied only where a CPU has to read the numbers first.
template <class Tensors, class Run>
void run_with_dropout_numbers(Device device, const Tensors& tensors, const Run& run) {
  if (device.kind == DeviceKind::cpu && tensors.dropout_state.given())
    run(with_dropout_numbers(tensors));
  else
    run(tensors);
}
/// All dimensions but the last as one, [rows, columns]. Throws where the strides of the leading dimensions do not fold.
ConstTensorView folded(std::string_view where, std::string_view argument, const ConstTensorView& view);
TensorView folded(std::string_view where, std::string_view argument, const TensorView& view);
void require_workspace(std::string_view where, const Workspace& workspace, std::size_t bytes);

}  // namespace everglow
