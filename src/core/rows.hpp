// The row of each layer's kernel table: a name, a list of sentences that accept or decline, sizes, and the functions that run.
// Tensors given to a row have been checked by src/ops/<layer>/check.cpp against the plan; a row reads run sizes from the views.
#pragma once

#include <everglow/everglow.hpp>

#include "core/arena.hpp"
#include "core/dispatch.hpp"

#include <functional>

namespace everglow {

using LinearQuery = Query<LinearDescription, LinearSizes>;
struct LinearRow {
  std::string_view name;
  Verdict (*accepts)(const LinearQuery&) = nullptr;
  Footprint (*footprint)(const LinearQuery&) = nullptr;
  void (*forward)(const LinearQuery&, const LinearForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const LinearQuery&, const LinearBackward&, void* workspace, const Stream&) = nullptr;
  void (*pack)(const LinearQuery&, const ConstTensorView& weight, void* packed, const Stream&) = nullptr;
  void (*prepare)(const LinearQuery&, const LinearSizes&) = nullptr;  // null: runs have nothing to make
  void (*explain)(const LinearQuery&, Explanation&) = nullptr;        // adds what the row alone knows; null: nothing
  int (*tune)(const std::function<void()>& run) = nullptr;  // run's products are measured: how many were; null: nothing to choose
};

using RecurrentQuery = Query<RecurrentDescription, RecurrentSizes>;
struct RecurrentRow {
  std::string_view name;
  Verdict (*accepts)(const RecurrentQuery&) = nullptr;
  Footprint (*footprint)(const RecurrentQuery&) = nullptr;
  void (*forward)(const RecurrentQuery&, const RecurrentForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const RecurrentQuery&, const RecurrentBackward&, void* workspace, const Stream&) = nullptr;
  void (*pack)(const RecurrentQuery&, std::span<const RecurrentWeights>, void* packed, const Stream&) = nullptr;
};

using AttentionQuery = Query<AttentionDescription, AttentionSizes>;
struct AttentionRow {
  std::string_view name;
  Verdict (*accepts)(const AttentionQuery&) = nullptr;
  Footprint (*footprint)(const AttentionQuery&) = nullptr;
  void (*forward)(const AttentionQuery&, const AttentionForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const AttentionQuery&, const AttentionBackward&, void* workspace, const Stream&) = nullptr;
};

using SoftmaxQuery = Query<SoftmaxDescription, SoftmaxSizes>;
struct SoftmaxRow {
  std::string_view name;
  Verdict (*accepts)(const SoftmaxQuery&) = nullptr;
  Footprint (*footprint)(const SoftmaxQuery&) = nullptr;
  void (*forward)(const SoftmaxQuery&, const SoftmaxForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const SoftmaxQuery&, const SoftmaxBackward&, void* workspace, const Stream&) = nullptr;
};

using EmbeddingQuery = Query<EmbeddingDescription, EmbeddingSizes>;
struct EmbeddingRow {
  std::string_view name;
  Verdict (*accepts)(const EmbeddingQuery&) = nullptr;
  Footprint (*footprint)(const EmbeddingQuery&) = nullptr;
  void (*forward)(const EmbeddingQuery&, const EmbeddingForward&, void* workspace, const Stream&) = nullptr;
  void (*backward)(const EmbeddingQuery&, const EmbeddingBackward&, void* workspace, const Stream&) = nullptr;
};

using LossQuery = Query<LossDescription, LossSizes>;
struct LossRow {
  std::string_view name;
  Verdict (*accepts)(const LossQuery&) = nullptr;
  Footprint (*footprint)(const LossQuery&) = nullptr;
  void (*forward)(const LossQuery&, const LossForward&, void* workspace, const Stream&) = nullptr;
  void (*forward_backward)(const LossQuery&, const LossBackward&, void* workspace, const Stream&) = nullptr;
};

using PointwiseQuery = Query<PointwiseDescription, PointwiseSizes>;
struct PointwiseRow {
  std::string_view name;
  Verdict (*accepts)(const PointwiseQuery&) = nullptr;
  Footprint (*footprint)(const PointwiseQuery&) = nullptr;
  void (*run)(const PointwiseQuery&, const PointwiseRun&, void* workspace, const Stream&) = nullptr;
};

using AdamQuery = Query<AdamDescription, AdamSizes>;
struct AdamRow {
  std::string_view name;
  Verdict (*accepts)(const AdamQuery&) = nullptr;
  Footprint (*footprint)(const AdamQuery&) = nullptr;
  void (*step)(const AdamQuery&, const AdamStep&, void* workspace, const Stream&) = nullptr;
};

/// For rows that serve f32 and the 16-bit types.
inline Verdict accept_storage(DType dtype) {
  if (dtype == DType::f64) return decline("f64 is served by the reference alone");
  return accept();
}

/// For rows whose workspace is what a function of the query takes from an arena.
template <auto scratch_of, class AnyQuery>
Footprint arena_footprint(const AnyQuery& query) {
  Arena arena;
  scratch_of(query, arena);
  return {.workspace = arena.bytes()};
}

/// For rows that need no scratch.
template <class AnyQuery>
Footprint no_footprint(const AnyQuery&) {
  return {};
}

}  // namespace everglow
