// The recurrent rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const RecurrentRow* cpu_rows[] = {&cpu::recurrent_stepwise, &reference::recurrent};
constexpr const RecurrentRow* cuda_rows[] = {&not_built_cuda<RecurrentRow, RecurrentQuery>};

}  // namespace

std::span<const RecurrentRow* const> recurrent_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return cpu_rows;
}

}  // namespace everglow
