// The pointwise rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const PointwiseRow* cuda_rows[] = {&not_built_cuda<PointwiseRow, PointwiseQuery>};

}  // namespace

std::span<const PointwiseRow* const> pointwise_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
