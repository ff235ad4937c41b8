// The softmax rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const SoftmaxRow* cpu_rows[] = {&cpu::softmax_online, &reference::softmax};
constexpr const SoftmaxRow* cuda_rows[] = {&not_built_cuda<SoftmaxRow, SoftmaxQuery>};

}  // namespace

std::span<const SoftmaxRow* const> softmax_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return cpu_rows;
}

}  // namespace everglow
