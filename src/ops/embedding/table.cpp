// The embedding rows, in order of preference.
#include "ops/tables.hpp"

namespace everglow {
namespace {

constexpr const EmbeddingRow* cuda_rows[] = {&not_built_cuda<EmbeddingRow, EmbeddingQuery>};

}  // namespace

std::span<const EmbeddingRow* const> embedding_table(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda_rows;
  return {};
}

}  // namespace everglow
