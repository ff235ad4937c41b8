// What a Model holds: parameters, the passes of recent batch shapes, the block of their activations, the optimiser's plan, and the
// steps that are on their way.
#pragma once

#include "model_pass.hpp"

#include <array>
#include <deque>
#include <list>

namespace everglow::gnmt {

struct Model::Impl {
  Impl(const ModelDescription& description, Device device, const PlanOptions& options);

  /// The shape that a batch of these sizes runs with: on a card padded, so that batches share plans and graphs.
  PassShape shape_of(const BatchSizes& sizes, bool training) const;
  /// The pass of a shape, made where it is not among the recent ones; not placed.
  Pass& find(const PassShape& shape);
  /// The same, placed in the block.
  Pass& pass(const PassShape& shape);
  /// Copies a batch, and the state of dropout's masks for a key, to a pass.
  void give(Pass& pass, const Batch& batch, std::uint64_t key);
  /// The pass of a shape after its forward run on a batch (without the loss).
  Pass& forward(const Batch& batch, const PassShape& shape, std::uint64_t key);
  static void run_forward(const Pass& pass);
  static void run_backward(const Pass& pass);
  /// What the last pass came to; waits for it.
  LossSum read_loss() const;

  void prepare_optimiser(double clip);
  void run_optimiser() const;
  void give_rates(std::span<const double> rates);
  /// The whole step, as a graph where that is possible.
  void run_step(Pass& pass);
  /// Asks for the scalars of the step that was given last.
  void ask_result();
  /// Waits for the oldest step on its way.
  void collect();
  /// Reads from the device how often the scaler has skipped a step.
  void read_skipped();

  OwnedStream own;
  Parameters parameters;
  Setting setting, decoding;  // decoding: with the masters, in their type
  GrowingBlock block;
  std::list<Pass> passes;  // most recent first
  Staging inputs, rates;
  std::vector<LayerChoice> choices;
  std::optional<PassShape> trained;  // the last training pass, if no decoding came after it
  std::optional<AdamPlan> adam;
  double adam_clip = -1;
  Buffer adam_memory;
  std::optional<PointwisePlan> narrow;  // masters to what layers of 16 bits read

  struct Asked {
    Buffer memory;  // the scalars, on the host
    Event there;
    StepScalars scalars;
  };
  std::vector<Asked> asked;  // most_steps_ahead, in turn
  std::int64_t steps_given = 0, steps_come = 0;
  std::int64_t skipped = 0, skipped_taken = 0;  // by the scaler, as the last result told, and the last one that was taken
  std::vector<StepResult> results;
};

/// Throws Error(invalid_argument or unsupported) where no model can be like this; else gives the description back.
const ModelDescription& check_description(const ModelDescription& description);

/// Throws where a batch contradicts itself; `targets` also looks at the target side.
void check_batch(std::string_view where, const Batch& batch, bool targets);

}  // namespace everglow::gnmt
