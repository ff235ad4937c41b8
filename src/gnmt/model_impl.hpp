// What a Model holds: parameters, the passes of recent batch shapes, the block of their activations, and the optimiser's plan.
#pragma once

#include "model_pass.hpp"

#include <list>

namespace everglow::gnmt {

struct Model::Impl {
  Impl(const ModelDescription& description, Device device, const PlanOptions& options);

  /// The pass of a shape, placed in the block; made where it is not among the recent ones.
  Pass& pass(const PassShape& shape);
  /// The evaluation pass of a batch after its forward run (without the loss).
  Pass& forward(const Batch& batch, const PassShape& shape, std::uint64_t key);
  LossSum read_loss(const Pass& pass) const;

  Parameters parameters;
  Setting setting;
  GrowingBlock block;
  std::list<Pass> passes;  // most recent first
  std::vector<LayerChoice> choices;
  std::optional<AdamPlan> adam;
  double adam_clip = -1;
  Buffer adam_memory;
};

/// Throws Error(invalid_argument or unsupported) where no model can be like this; else gives the description back.
const ModelDescription& check_description(const ModelDescription& description);

/// Throws where a batch contradicts itself; `targets` also looks at the target side.
void check_batch(std::string_view where, const Batch& batch, bool targets);

}  // namespace everglow::gnmt
