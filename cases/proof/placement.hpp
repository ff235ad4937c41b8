// Where the tensors of a run lie: in host memory as they are, or as copies in the memory of a card. A proof makes its tensors on
// the host, and a placement carries the blocks around them, guards and padding included, to the device of a run and back.
#pragma once

#include "cases/proof/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

namespace everglow::proof {

/// For one call. Views must be of HostTensors or Scratches.
class Placement {
 public:
  explicit Placement(Device device) : device_(device) {}
  /// The same view where the device finds it; what is not given stays so.
  ConstTensorView operator()(const ConstTensorView& view);
  TensorView operator()(const TensorView& view);
  Workspace operator()(const Scratch& scratch);
  const PackedWeights* operator()(const PackedWeights* packed);
  std::span<const RecurrentWeights> operator()(std::span<const RecurrentWeights> weights);
  std::span<const RecurrentWeightGradients> operator()(std::span<const RecurrentWeightGradients> gradients);
  Stream stream() const { return {device_, nullptr}; }
  /// Waits, and brings back every block of which a view that can be written was placed.
  void finish();

 private:
  struct Block {
    Buffer memory;
    std::uintptr_t address = 0;  // of the copy's first byte; as far from a multiple of 256 as the original's
    void* host = nullptr;
    std::size_t bytes = 0;
    bool written = false;
  };
  Block& block_of(const void* data);
  template <class Void>
  BasicTensorView<Void> moved(BasicTensorView<Void> view, bool written);

  Device device_;
  std::map<const void*, Block> blocks_;
  std::deque<PackedWeights> packed_;
  std::deque<std::vector<RecurrentWeights>> weights_;
  std::deque<std::vector<RecurrentWeightGradients>> gradients_;
};

AttentionForward placed(Placement& place, const AttentionForward& tensors);
AttentionBackward placed(Placement& place, const AttentionBackward& tensors);
EmbeddingForward placed(Placement& place, const EmbeddingForward& tensors);
EmbeddingBackward placed(Placement& place, const EmbeddingBackward& tensors);
LinearForward placed(Placement& place, const LinearForward& tensors);
LinearBackward placed(Placement& place, const LinearBackward& tensors);
PointwiseRun placed(Placement& place, const PointwiseRun& tensors);
RecurrentForward placed(Placement& place, const RecurrentForward& tensors);
RecurrentBackward placed(Placement& place, const RecurrentBackward& tensors);
SoftmaxForward placed(Placement& place, const SoftmaxForward& tensors);
SoftmaxBackward placed(Placement& place, const SoftmaxBackward& tensors);

/// One call of a plan on its device with tensors of the host: when it returns, they hold the results.
template <class Plan, class Tensors>
void forward_on(Device device, const Plan& plan, const Tensors& tensors, const Scratch& scratch) {
  Placement place(device);
  plan.forward(placed(place, tensors), place(scratch), place.stream());
  place.finish();
}
template <class Plan, class Tensors>
void backward_on(Device device, const Plan& plan, const Tensors& tensors, const Scratch& scratch) {
  Placement place(device);
  plan.backward(placed(place, tensors), place(scratch), place.stream());
  place.finish();
}

}  // namespace everglow::proof
