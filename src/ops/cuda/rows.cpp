// The CUDA rows of each layer, in order of preference.
#include "ops/cuda/rows.hpp"

#include "cuda/common/rows.hpp"
#include "cuda/sm80/rows.hpp"

namespace everglow::cuda {
namespace {

constexpr const LinearRow* linears[] = {&linear_cublaslt, &linear};
constexpr const RecurrentRow* recurrents[] = {&recurrent_stepwise};
constexpr const AttentionRow* attentions[] = {&attention_flash2, &attention_flash1, &attention_standard};
constexpr const SoftmaxRow* softmaxes[] = {&softmax_online};
constexpr const PointwiseRow* pointwises[] = {&pointwise};
constexpr const EmbeddingRow* embeddings[] = {&embedding};
constexpr const AdamRow* adams[] = {&adam};
constexpr const LossRow* losses[] = {&loss_cublaslt, &loss};

}  // namespace

std::span<const LinearRow* const> linear_rows() { return linears; }
std::span<const RecurrentRow* const> recurrent_rows() { return recurrents; }
std::span<const AttentionRow* const> attention_rows() { return attentions; }
std::span<const SoftmaxRow* const> softmax_rows() { return softmaxes; }
std::span<const EmbeddingRow* const> embedding_rows() { return embeddings; }
std::span<const LossRow* const> loss_rows() { return losses; }
std::span<const PointwiseRow* const> pointwise_rows() { return pointwises; }
std::span<const AdamRow* const> adam_rows() { return adams; }

}  // namespace everglow::cuda
