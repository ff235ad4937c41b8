// The adam rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const AdamRow* cpu_rows[] = {&cpu::adam, &reference::adam};

}  // namespace

std::span<const AdamRow* const> adam_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::adam_rows();
  return cpu_rows;
}

}  // namespace everglow
