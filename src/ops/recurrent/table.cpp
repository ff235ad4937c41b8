// The recurrent rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const RecurrentRow* cpu_rows[] = {&cpu::recurrent_stepwise, &reference::recurrent};

}  // namespace

std::span<const RecurrentRow* const> recurrent_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::recurrent_rows();
  return cpu_rows;
}

}  // namespace everglow
