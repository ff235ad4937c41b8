// What a training step of the translation model does on a device: parameters, memory, time, what costs most, what would help. No
// model is made and no GPU is needed.
#pragma once

#include <everglow/gnmt/model.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace everglow::gnmt {

/// A batch of sentence pairs whose sides have `length` tokens each, with the end of sentence.
struct ModelSizes {
  std::int64_t batch = 0;
  std::int64_t length = 0;
};

/// A part of the step. Its explanation has no advice of its own: a change of a layer is one of the model.
struct ModelItem {
  std::string name{};           ///< "encoder 0", "attention", "classifier", "optimizer", ...
  std::int64_t parameters = 0;  ///< of this part alone
  Explanation explanation{};
};

/// Bytes. A 16-bit model keeps f32 master weights beside the 16-bit ones.
struct ModelMemory {
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  std::int64_t activations = 0;  ///< what forward keeps for backward
  std::int64_t peak = 0;         ///< all of them, and the largest scratch of a part
};

struct ModelExplanation {
  std::string device{};
  std::string dtype{};
  std::int64_t parameters = 0;
  ModelMemory memory{};
  double time_us = 0, floor_us = 0;         ///< of a training step: forward, backward, optimiser
  double tokens_per_second = 0;             ///< source + target
  std::vector<ModelItem> items{};           ///< in the order of the forward pass
  std::vector<std::size_t> worst{};         ///< the three items that lose most time to their floor, most first
  std::vector<ExplanationAdvice> advice{};  ///< of vocabulary, hidden and batch; a batch's gain is per pair
};

ModelExplanation explain(const ModelDescription& description, const ModelSizes& sizes, const DeviceDescription& device,
                         const PlanOptions& options = {});

}  // namespace everglow::gnmt
