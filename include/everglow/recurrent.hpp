// Recurrent layers over whole sequences, forward and backward. Gate order and parameter names are torch's (i, f, g, o; r, z, n).
//   lstm              i,f,o = sigmoid(W x + b + R h + b'), g = tanh(...), c = f c + i g, h = o tanh(c)  (Hochreiter &
//                     Schmidhuber 1997), with projection h = w_hr (o tanh(c))  (Sak et al. 2014)
//   gru               r,z = sigmoid(W x + b + R h + b'), n = tanh(W x + b + r (R h + b')), h = (1 - z) n + z h
//   gru_reset_before  r,z as gru, n = tanh(W x + b + R (r h) + b'), h = (1 - z) n + z h
//   tanh, relu        h = tanh(W x + b + R h + b'), max(0, ...)
#pragma once

#include <everglow/plan.hpp>

#include <memory>
#include <span>

namespace everglow {

/// gru resets after the recurrent product (torch, cuDNN), gru_reset_before before it (Cho et al. 2014).
enum class Cell : std::uint8_t { lstm, gru, gru_reset_before, tanh, relu };

struct RecurrentDescription {
  Cell cell = Cell::lstm;
  std::int64_t inputs = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 1;
  bool bidirectional = false;
  std::int64_t projection = 0;  ///< 0: none; else P, the size of h (LSTM only)
  /// Of what each layer but the last puts out, as the next layer sees it; h, hn and y are never dropped. Every run drops, one
  /// that does not train too: describe 0 for inference. Element i of the run's logical [layer, T, B, directions·(H or P)] uses
  /// Philox word i mod 4 of counter offset + i / 4 and is kept, scaled by 1 / (1 - p), where the word is at least floor(p 2^32).
  float dropout = 0;
  /// With f16 or bf16, x, h, y, weights and gradients have 16 bits, and a result is rounded once, to nearest even, when it is
  /// stored: h after each step (what y holds is what the next step reads), the sequence between two layers and its gradient, hn,
  /// dx, dh0. Gates, sums, the LSTM's cell state from step to step and all gradients inside a layer are f32 (in the reference f64).
  DType dtype = DType::f32;
  bool training = false;  ///< forward fills the reserve and backward may be called
  bool lengths = false;   ///< runs bring a length per row
  bool resets = false;    ///< runs bring resets
  constexpr std::int64_t directions() const noexcept { return bidirectional ? 2 : 1; }
};

struct RecurrentSizes {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
};

/// Parameters of one (layer, direction); index = layer * directions + direction. G: 4 for LSTM, 3 for GRU, 1 else.
struct RecurrentWeights {
  ConstTensorView w_ih{};  // [G·H, I], the inputs of that layer
  ConstTensorView w_hh{};  // [G·H, H or P]
  ConstTensorView b_ih{};  // [G·H]; not given: none
  ConstTensorView b_hh{};  // [G·H]; not given: none
  ConstTensorView w_hr{};  // [P, H] with projection
};
struct RecurrentWeightGradients {
  TensorView w_ih{}, w_hh{}, b_ih{}, b_hh{}, w_hr{};  // as above, f32 or the storage type; not given: not computed
};

struct RecurrentForward {
  ConstTensorView x{};   // [T, B, I]
  ConstTensorView h0{};  // [layers·directions, B, H or P]; not given: zero
  /// [layers·directions, B, H], LSTM only; not given: zero. c0, cn, dc0 and dcn are f32 or the storage type, each as it likes: a
  /// stream that passes the cell state on in f32 gives the bits of the whole sequence in any storage type.
  ConstTensorView c0{};
  std::span<const RecurrentWeights> weights{};  // biases are always read from here; the matrices not where packed is given
  TensorView y{};                               // [T, B, directions·(H or P)], forward half first; 0 past a length
  TensorView hn{};                              // as h0: the state after each row's last valid step; not given: not written
  TensorView cn{};                              // as c0
  TensorView reserve{};                         // u8 [plan.reserve_bytes()] when training, 64-byte aligned: what backward needs
  ConstTensorView lengths{};                    // i32 [B], 0 ... T, any order
  /// u8 [T, B]; where not 0, the edge between steps t-1 and t is cut in every layer: the state before step t is 0 (at t = 0: not
  /// h0), and in the reverse direction, which comes over that edge from t, the state before step t-1. No gradient crosses it.
  /// The reverse direction begins with h0 and ends with hn whatever stands at step 0 and past a length.
  ConstTensorView resets{};
  const PackedWeights* packed = nullptr;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  ConstTensorView dropout_state{};  // i64 [2]: seed and offset in the layer's memory, in place of the two numbers
  TensorView status{};              // u32 [1] in an i32 view; a run only ORs into it (check_status)
};

/// dy, dhn, dcn not given: zero. A gradient that is not given is not computed. Padding of x, y and dy never matters.
struct RecurrentBackward {
  ConstTensorView x{}, h0{}, c0{};
  std::span<const RecurrentWeights> weights{};
  ConstTensorView y{};  // as forward wrote it
  ConstTensorView reserve{};
  ConstTensorView lengths{}, resets{};
  ConstTensorView dy{};                                  // [T, B, directions·(H or P)]
  ConstTensorView dhn{}, dcn{};                          // as h0, c0
  TensorView dx{};                                       // [T, B, I]; 0 past a length
  TensorView dh0{}, dc0{};                               // as h0, c0
  std::span<const RecurrentWeightGradients> dweights{};  // empty: none
  const PackedWeights* packed = nullptr;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  ConstTensorView dropout_state{};  // i64 [2]: seed and offset in the layer's memory, in place of the two numbers
  bool accumulate = false;          // add into the weight gradients
  TensorView status{};
};

/// Plan of a recurrent layer. A run may bring fewer steps and rows than the plan's sizes. With one step it is a streaming step:
/// pass hn, cn back as h0, c0 (in other memory), and with `deterministic` the bits are those of the whole sequence on every row of
/// ours. What is written must be apart from everything else of the call. On a CPU a length out of range throws before anything is
/// written. Without dropout the seed and offset must be 0 and their view absent.
class EVERGLOW_API RecurrentPlan {
 public:
  RecurrentPlan(const RecurrentDescription& description, const RecurrentSizes& sizes,
                const DeviceDescription& device = Device::cpu(), const PlanOptions& options = {});
  const Explanation& explain() const;  ///< products, times and advice are made at the first call
  std::size_t workspace_bytes() const noexcept;
  std::size_t reserve_bytes() const noexcept;  ///< forward -> backward
  std::size_t packed_bytes() const noexcept;
  std::uint64_t dropout_counters() const noexcept;  ///< Philox counters a run of the largest size uses; 0 without dropout
  void pack(std::span<const RecurrentWeights> weights, PackedWeights& packed, const Stream& stream = {}) const;
  void forward(const RecurrentForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void backward(const RecurrentBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
