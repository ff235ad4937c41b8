// The attention rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const AttentionRow* cpu_rows[] = {&cpu::attention_flash2, &reference::attention};

}  // namespace

std::span<const AttentionRow* const> attention_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::attention_rows();
  return cpu_rows;
}

}  // namespace everglow
