// The loss rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const LossRow* cuda_rows[] = {&not_built_cuda<LossRow, LossQuery>};

}  // namespace

std::span<const LossRow* const> loss_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
