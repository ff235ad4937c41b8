// The embedding rows, in order of preference.
#include "cpu/rows.hpp"
#include "ops/cuda/rows.hpp"
#include "ops/tables.hpp"
#include "reference/rows.hpp"

namespace everglow {
namespace {

constexpr const EmbeddingRow* cpu_rows[] = {&cpu::embedding, &reference::embedding};

}  // namespace

std::span<const EmbeddingRow* const> embedding_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::embedding_rows();
  return cpu_rows;
}

}  // namespace everglow
