// The softmax rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const SoftmaxRow* cpu_rows[] = {&cpu::softmax_online, &reference::softmax};

}  // namespace

std::span<const SoftmaxRow* const> softmax_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::softmax_rows();
  return cpu_rows;
}

}  // namespace everglow
