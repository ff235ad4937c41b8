// The row cpu.recurrent_stepwise: f32 LSTM of one layer.
#include "core/recurrent.hpp"
#include "cpu/recurrent_layout.hpp"
#include "cpu/rows.hpp"

#include <algorithm>

namespace everglow::cpu {
namespace {

Verdict accepts(const RecurrentQuery& q) {
  const RecurrentDescription& d = q.description;
  if (d.dtype != DType::f32) return decline(name(d.dtype), " is not served yet");
  if (d.cell == Cell::gru) return decline("gru is not served yet");
  if (d.cell == Cell::gru_reset_before) return decline("gru_reset_before is not served yet");
  if (d.cell == Cell::tanh) return decline("tanh is not served yet");
  if (d.cell == Cell::relu) return decline("relu is not served yet");
  if (d.layers > 1) return decline("layers > 1 is not served yet");
  if (d.projection > 0) return decline("projection is not served yet");
  if (d.resets) return decline("resets are not served yet");
  return accept();
}

Footprint footprint(const RecurrentQuery& q) {
  const LstmShape s = shape_of(q.description, q.sizes.steps, q.sizes.batch);
  Arena packed, reserve;
  take_weights(packed, s, q.isa);
  std::size_t workspace = recurrent_forward_bytes(q);
  if (q.description.training) {
    take_reserve(reserve, s);
    workspace = std::max(workspace, recurrent_backward_bytes(q));
  }
  return {workspace, reserve.bytes(), packed.bytes()};
}

void pack(const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed, const Stream&) {
  const LstmShape s = shape_of(q.description, 0, 0);
  Arena arena(packed);
  fill_weights(take_weights(arena, s, q.isa), s, weights, {.w_ih = true, .w_ih_packed = true, .forward = true, .backward = true},
               q);
}

}  // namespace

const RecurrentRow recurrent_stepwise{.name = "cpu.recurrent_stepwise",
                                      .accepts = accepts,
                                      .footprint = footprint,
                                      .forward = [](const RecurrentQuery& q, const RecurrentForward& t, void* workspace,
                                                    const Stream&) { recurrent_forward(q, t, workspace); },
                                      .backward = [](const RecurrentQuery& q, const RecurrentBackward& t, void* workspace,
                                                     const Stream&) { recurrent_backward(q, t, workspace); },
                                      .pack = pack};

}  // namespace everglow::cpu
