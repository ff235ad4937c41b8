// The loss rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const LossRow* cpu_rows[] = {&cpu::loss, &reference::loss};

}  // namespace

std::span<const LossRow* const> loss_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::loss_rows();
  return cpu_rows;
}

}  // namespace everglow
