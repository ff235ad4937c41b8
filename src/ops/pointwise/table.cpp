// The pointwise rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const PointwiseRow* cpu_rows[] = {&cpu::pointwise, &reference::pointwise};

}  // namespace

std::span<const PointwiseRow* const> pointwise_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::pointwise_rows();
  return cpu_rows;
}

}  // namespace everglow
