// The linear rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const LinearRow* cuda_rows[] = {&not_built_cuda<LinearRow, LinearQuery>};

}  // namespace

std::span<const LinearRow* const> linear_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
