// The attention rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const AttentionRow* cuda_rows[] = {&not_built_cuda<AttentionRow, AttentionQuery>};

}  // namespace

std::span<const AttentionRow* const> attention_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
