// The checks of check.hpp.
#include "core/check.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace everglow {
namespace {

std::string expected_text(std::span<const std::int64_t> shape, std::string_view dtype, Device device) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    out += text(i == 0 ? "" : ", ", shape[i] < 0 ? std::string("any") : text(shape[i]));
  return out + text("] ", dtype, ' ', to_string(device));
}

void require_sizes(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  require(view.rank <= max_rank, ErrorCode::invalid_argument, where, argument, ": expected a rank of at most ", max_rank, ", got ",
          view.rank);
  for (int i = 0; i < view.rank; ++i)
    require(view.shape[i] >= 0, ErrorCode::invalid_argument, where, argument, ": expected sizes of at least 0, got ",
            to_string(view));
}

bool same_shape(const ConstTensorView& view, std::span<const std::int64_t> shape) {
  if (view.rank != static_cast<int>(shape.size())) return false;
  for (int i = 0; i < view.rank; ++i)
    if (shape[i] >= 0 && view.shape[i] != shape[i]) return false;
  return true;
}

/// First byte and one past the last byte that a view can touch.
std::pair<std::uintptr_t, std::uintptr_t> extent(const ConstTensorView& view) {
  std::int64_t low = 0, high = 0;
  for (int i = 0; i < view.rank; ++i) {
    const std::int64_t reach = (view.shape[i] - 1) * view.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(view.data);
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  return {base + static_cast<std::uintptr_t>(low * bytes), base + static_cast<std::uintptr_t>((high + 1) * bytes)};
}

/// What one dimension adds to the distance between an element of one view and an element of another: stride · (low ... high).
struct Reach {
  std::int64_t stride = 0, low = 0, high = 0;
};

/// Whether dimensions, the widest stride first, can make up a distance. Strides that nest leave two choices a dimension; where more
/// are left, they do not nest, and the answer is yes without a search.
bool reaches(std::span<const Reach> dims, std::int64_t distance) {
  if (dims.empty()) return distance == 0;
  const Reach& first = dims.front();
  const std::span<const Reach> rest = dims.subspan(1);
  std::int64_t low = 0, high = 0;
  for (const Reach& r : rest) low += r.stride * r.low, high += r.stride * r.high;
  const auto down = [&first](std::int64_t value) {  // rounds towards -inf
    return value / first.stride - (value % first.stride < 0 ? 1 : 0);
  };
  const std::int64_t begin = std::max(first.low, -down(high - distance)), end = std::min(first.high, down(distance - low));
  if (end - begin > 3) return true;
  for (std::int64_t d = begin; d <= end; ++d)
    if (reaches(rest, distance - d * first.stride)) return true;
  return false;
}

/// Views with the same strides, such as parts of one matrix, interleave without sharing an element: an element of `a` and one of
/// `b` are the same where the index differences, each within its bounds, add up to the distance of the first elements.
bool interleave(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.rank != b.rank || a.dtype != b.dtype) return false;
  const auto size = static_cast<std::int64_t>(size_of(a.dtype));
  const auto bytes = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data));
  if (bytes % size != 0) return false;
  std::vector<Reach> dims;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] > 1 && b.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
    const std::int64_t stride = a.shape[i] > 1 ? a.strides[i] : b.strides[i];
    const std::int64_t low = 1 - b.shape[i], high = a.shape[i] - 1;
    if (stride == 0 || (low == 0 && high == 0)) continue;
    dims.push_back(stride > 0 ? Reach{stride, low, high} : Reach{-stride, -high, -low});
  }
  std::sort(dims.begin(), dims.end(), [](const Reach& x, const Reach& y) { return x.stride > y.stride; });
  return !reaches(dims, bytes / size);
}

template <class Void>
BasicTensorView<Void> fold_rows(std::string_view where, std::string_view argument, const BasicTensorView<Void>& view) {
  if (!view.given() || view.rank == 2) return view;
  require_sizes(where, argument, view);
  require(view.rank >= 1, ErrorCode::invalid_argument, where, argument, ": expected at least one dimension, got a scalar");
  std::int64_t rows = 1, stride = view.size(-1);
  for (int i = view.rank - 2; i >= 0; --i) {
    if (view.shape[i] == 1) continue;
    if (rows == 1)
      stride = view.strides[i];
    else
      require(view.strides[i] == stride * rows || view.elements() == 0, ErrorCode::invalid_argument, where, argument,
              ": expected leading dimensions that fold into one, got stride ", view.strides[i], " in dimension ", i);
    rows *= view.shape[i];
  }
  BasicTensorView<Void> out = view;
  out.rank = 2;
  out.shape = {rows, view.size(-1)};
  out.strides = {stride, view.stride(-1)};
  return out;
}

}  // namespace

ConstTensorView folded(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  return fold_rows(where, argument, view);
}
TensorView folded(std::string_view where, std::string_view argument, const TensorView& view) {
  return fold_rows(where, argument, view);
}

void require_tensor(std::string_view where, std::string_view argument, const ConstTensorView& view,
                    std::span<const std::int64_t> shape, DType dtype, Device device) {
  const auto complain = [&](ErrorCode code) {
    throw Error(code, where, text(argument, ": expected ", expected_text(shape, name(dtype), device), ", got ", to_string(view)));
  };
  require_sizes(where, argument, view);
  if (!view.given() || !same_shape(view, shape)) complain(ErrorCode::invalid_argument);
  if (view.dtype != dtype || view.device != device) complain(ErrorCode::type_mismatch);
  if (view.data == nullptr && view.elements() > 0)
    throw Error(ErrorCode::invalid_argument, where,
                text(argument, ": expected memory for ", to_string(view), ", got a null pointer"));
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(dtype) != 0)
    throw Error(ErrorCode::invalid_argument, where,
                text(argument, ": expected an address that is a multiple of ", size_of(dtype), " bytes"));
}

void require_f32_or_storage(std::string_view where, std::string_view argument, const ConstTensorView& view,
                            std::initializer_list<std::int64_t> shape, DType storage, Device device) {
  if (!view.given()) return;
  const DType dtype = view.dtype == DType::f32 ? DType::f32 : storage;
  const std::span<const std::int64_t> sizes(shape.begin(), shape.size());
  if (view.dtype != dtype && storage != DType::f32 && view.rank <= max_rank && same_shape(view, sizes))
    throw Error(
        ErrorCode::type_mismatch, where,
        text(argument, ": expected ", expected_text(sizes, text("f32 or ", name(storage)), device), ", got ", to_string(view)));
  require_tensor(where, argument, view, sizes, dtype, device);
}

void require_gradient(std::string_view where, std::string_view argument, const ConstTensorView& view,
                      std::initializer_list<std::int64_t> shape, DType storage, Device device) {
  if (!view.given()) return;
  require_f32_or_storage(where, argument, view, shape, storage, device);
  require_no_self_overlap(where, argument, view);
}

void require_countable(std::string_view where, std::string_view arguments, std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t limit = std::int64_t{1} << 56;
  std::int64_t left = limit;  // dividing it cannot overflow
  for (const std::int64_t size : sizes) left /= std::max<std::int64_t>(size, 1);
  if (left > 0) return;
  std::string came;
  for (const std::int64_t size : sizes) came += text(came.empty() ? "" : " x ", size);
  throw Error(ErrorCode::invalid_argument, where, text(arguments, ": expected fewer than 2^56 elements, got ", came));
}

void require_unit_stride(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  if (!view.given() || view.rank == 0 || view.elements() == 0 || view.size(-1) == 1 || view.stride(-1) == 1) return;
  throw Error(ErrorCode::invalid_argument, where,
              text(argument, ": expected a last dimension whose stride is 1, got stride ", view.stride(-1)));
}

void require_no_self_overlap(std::string_view where, std::string_view argument, const ConstTensorView& view) {
  if (!view.given() || view.elements() == 0) return;
  std::vector<int> order;
  for (int i = 0; i < view.rank; ++i)
    if (view.shape[i] > 1) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return std::abs(view.strides[a]) < std::abs(view.strides[b]); });
  std::int64_t inside = 1;
  for (const int dim : order) {
    if (std::abs(view.strides[dim]) < inside)
      throw Error(ErrorCode::invalid_argument, where,
                  text(argument, ": expected elements that do not overlap, got stride ", view.strides[dim], " in dimension ", dim));
    inside = std::abs(view.strides[dim]) * (view.shape[dim] - 1) + inside;
  }
}

void require_apart(std::string_view where, std::string_view written, const ConstTensorView& a, std::string_view other,
                   const ConstTensorView& b) {
  if (!a.given() || !b.given() || a.elements() == 0 || b.elements() == 0 || a.device != b.device) return;
  const auto [a0, a1] = extent(a);
  const auto [b0, b1] = extent(b);
  if (a1 <= b0 || b1 <= a0) return;
  if (interleave(a, b)) return;
  throw Error(ErrorCode::invalid_argument, where, text(written, ": expected memory apart from ", other, ", got an overlap"));
}

void require_all_apart(std::string_view where, std::span<const NamedView> written, std::span<const NamedView> only_read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    require_no_self_overlap(where, written[i].name, written[i].view);
    for (const NamedView& other : only_read) require_apart(where, written[i].name, written[i].view, other.name, other.view);
    for (std::size_t j = i + 1; j < written.size(); ++j)
      require_apart(where, written[i].name, written[i].view, written[j].name, written[j].view);
  }
}

void require_bytes(std::string_view where, std::string_view argument, const ConstTensorView& view, std::size_t least,
                   Device device) {
  require_tensor(where, argument, view, {-1}, DType::u8, device);
  require_unit_stride(where, argument, view);
  require(static_cast<std::size_t>(view.size(0)) >= least, ErrorCode::invalid_argument, where, argument, ": expected at least ",
          least, " bytes, got ", view.size(0));
  require(reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0, ErrorCode::invalid_argument, where, argument,
          ": expected an address that is a multiple of 64 bytes");
}

void require_dropout(std::string_view where, bool drops, const DropoutSource& source, Device device) {
  const bool numbers = source.seed != 0 || source.offset != 0;
  require(drops || !numbers, ErrorCode::invalid_argument, where,
          "dropout_seed, dropout_offset: expected 0 for an operation that drops nothing, got ", source.seed, " and ",
          source.offset);
  if (!source.state.given()) return;
  require(drops, ErrorCode::invalid_argument, where, "dropout_state: expected none for an operation that drops nothing, got ",
          to_string(source.state));
  require_tensor(where, "dropout_state", source.state, {2}, DType::i64, device);
  require(!numbers, ErrorCode::invalid_argument, where, "dropout_seed, dropout_offset: expected 0 beside a dropout_state, got ",
          source.seed, " and ", source.offset);
}

void require_workspace(std::string_view where, const Workspace& workspace, std::size_t bytes) {
  if (bytes == 0) return;
  if (workspace.data == nullptr || workspace.bytes < bytes)
    throw Error(ErrorCode::out_of_memory, where,
                text("workspace: expected at least ", bytes, " bytes, got ", workspace.data == nullptr ? 0 : workspace.bytes));
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 64 != 0)
    throw Error(ErrorCode::invalid_argument, where, "workspace: expected an address that is a multiple of 64 bytes");
}

}  // namespace everglow
