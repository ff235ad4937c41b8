// The linear rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const LinearRow* cpu_rows[] = {&cpu::linear_onednn, &cpu::linear, &reference::linear};

}  // namespace

std::span<const LinearRow* const> linear_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::linear_rows();
  return cpu_rows;
}

}  // namespace everglow
