// Stands in for the CUDA backend in a build without it: one declining row for each layer, and a runtime that says why.
#include "core/runtime.hpp"
#include "ops/cuda/rows.hpp"

namespace everglow {
namespace {

constexpr std::string_view reason = "CUDA not built";

}  // namespace

const DeviceRuntime cuda_runtime{.status = [] { return BackendStatus{"cuda", false, std::string(reason)}; }};

namespace cuda {
namespace {

template <class Row, class AnyQuery>
std::span<const Row* const> declining() {
  static constexpr Row row{.name = "cuda", .accepts = [](const AnyQuery&) { return decline(reason); }};
  static constexpr const Row* rows[] = {&row};
  return rows;
}

}  // namespace

std::span<const LinearRow* const> linear_rows() { return declining<LinearRow, LinearQuery>(); }
std::span<const RecurrentRow* const> recurrent_rows() { return declining<RecurrentRow, RecurrentQuery>(); }
std::span<const AttentionRow* const> attention_rows() { return declining<AttentionRow, AttentionQuery>(); }
std::span<const SoftmaxRow* const> softmax_rows() { return declining<SoftmaxRow, SoftmaxQuery>(); }
std::span<const EmbeddingRow* const> embedding_rows() { return declining<EmbeddingRow, EmbeddingQuery>(); }
std::span<const LossRow* const> loss_rows() { return declining<LossRow, LossQuery>(); }
std::span<const PointwiseRow* const> pointwise_rows() { return declining<PointwiseRow, PointwiseQuery>(); }
std::span<const AdamRow* const> adam_rows() { return declining<AdamRow, AdamQuery>(); }

}  // namespace cuda
}  // namespace everglow
