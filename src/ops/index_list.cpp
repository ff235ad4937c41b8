// Lists of indices.
#include "ops/index_list.hpp"

#include "core/check.hpp"
#include "core/indices.hpp"

namespace everglow {

ConstTensorView index_list(std::string_view where, std::string_view argument, const ConstTensorView& view, Device device) {
  require(view.given(), ErrorCode::invalid_argument, where, argument, ": expected i32 or i64 indices, got ", to_string(view));
  require(view.dtype == DType::i32 || view.dtype == DType::i64, ErrorCode::type_mismatch, where, argument,
          ": expected i32 or i64, got ", to_string(view));
  require(view.rank < max_rank, ErrorCode::invalid_argument, where, argument, ": expected a rank below ", max_rank, ", got ",
          to_string(view));
  require_tensor(where, argument, view, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), view.dtype, device);
  ConstTensorView column = view;
  column.shape[column.rank] = 1, column.strides[column.rank] = 1;
  ++column.rank;
  column = folded(where, argument, column);
  column.rank = 1;  // [n, 1] as [n]
  return column;
}

void require_indices(std::string_view where, std::string_view argument, const ConstTensorView& list, std::int64_t limit,
                     std::optional<std::int64_t> extra) {
  if (list.device.kind != DeviceKind::cpu) return;
  for (std::int64_t i = 0; i < list.size(0); ++i) {
    const std::int64_t index = read_index(list, i);
    if ((index >= 0 && index < limit) || index == extra) continue;
    throw Error(ErrorCode::invalid_argument, where,
                text(argument, ": expected ", limit > 0 ? text("0 ... ", limit - 1) : std::string("no index"),
                     extra.has_value() ? text(" or ", *extra) : std::string(), ", got ", index, " in row ", i));
  }
}

}  // namespace everglow
