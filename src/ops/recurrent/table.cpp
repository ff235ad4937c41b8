// The recurrent rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const RecurrentRow* cuda_rows[] = {&not_built_cuda<RecurrentRow, RecurrentQuery>};

}  // namespace

std::span<const RecurrentRow* const> recurrent_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
