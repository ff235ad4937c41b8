// The CUDA rows of each layer, in order of preference.
#include "ops/cuda/rows.hpp"

#include "cuda/common/rows.hpp"

namespace everglow::cuda {
namespace {

constexpr const LinearRow* linears[] = {&linear_cublaslt, &linear};
constexpr const RecurrentRow* recurrents[] = {&recurrent_stepwise};
constexpr const SoftmaxRow* softmaxes[] = {&softmax_online};
constexpr const PointwiseRow* pointwises[] = {&pointwise};

/// A layer that no CUDA row serves says so in one declining row, as a backend that is not built does.
template <class Row, class AnyQuery>
std::span<const Row* const> declining() {
  static constexpr Row row{.name = "cuda", .accepts = [](const AnyQuery&) { return decline("this layer has no CUDA row"); }};
  static constexpr const Row* rows[] = {&row};
  return rows;
}

}  // namespace

std::span<const LinearRow* const> linear_rows() { return linears; }
std::span<const RecurrentRow* const> recurrent_rows() { return recurrents; }
std::span<const AttentionRow* const> attention_rows() { return declining<AttentionRow, AttentionQuery>(); }
std::span<const SoftmaxRow* const> softmax_rows() { return softmaxes; }
std::span<const EmbeddingRow* const> embedding_rows() { return declining<EmbeddingRow, EmbeddingQuery>(); }
std::span<const LossRow* const> loss_rows() { return declining<LossRow, LossQuery>(); }
std::span<const PointwiseRow* const> pointwise_rows() { return pointwises; }
std::span<const AdamRow* const> adam_rows() { return declining<AdamRow, AdamQuery>(); }

}  // namespace everglow::cuda
