// One shape of batch: the plans of every layer and the views of every activation, encoder and decoder, forward and backward.
// Activations are time-major. What two layers share lies where both can reach it by strides: a decoder layer's input holds the
// layer below in its first half and the attention's context in its second.
#pragma once

#include "model_memory.hpp"
#include "model_parameters.hpp"

#include <optional>

namespace everglow::gnmt {

/// What all passes of a model share.
struct Setting {
  ModelDescription model;
  DeviceDescription device;
  PlanOptions options;
  Stream stream;
  const Weights* parameters = nullptr;
  const StepScalars* scalars = nullptr;

  bool on_card() const { return device.device.kind == DeviceKind::cuda; }
  bool scales_loss() const { return model.dtype == DType::f16; }
  /// On a card a gradient of the keys may be a sum whose order changes from run to run, unless it is asked for otherwise. The other
  /// layers' sums have one order for a shape.
  PlanOptions attention_options() const {
    PlanOptions out = options;
    out.deterministic = options.deterministic || on_card();
    return out;
  }
};

/// Time-major steps as attention reads them: [T, B, H] -> [B, T, heads, H / heads], the same memory.
inline TensorView by_heads(const TensorView& steps, const ModelDescription& model) {
  return steps.transposed(0, 1).split(2, model.heads(), model.hidden / model.heads());
}
/// Keys and values of [S, B, 2H] as attention reads them.
inline TensorView keys_of(const TensorView& key_value, const ModelDescription& model) {
  return by_heads(key_value.narrow(2, 0, model.hidden), model);
}
inline TensorView values_of(const TensorView& key_value, const ModelDescription& model) {
  return by_heads(key_value.narrow(2, model.hidden, model.hidden), model);
}

RecurrentDescription lstm_description(const ModelDescription& model, std::int64_t inputs, bool training);
AttentionDescription attention_description(const ModelDescription& model, bool training);

struct PassShape {
  std::int64_t source_steps = 0, target_steps = 0, batch = 0;
  bool training = false;
  bool decoder = true;
  bool wide = false;  // with the masters' type whatever the model's is
  friend bool operator==(const PassShape&, const PassShape&) = default;
};

/// What a pass reads of a batch: one block, filled on the host and copied as a whole.
struct PassInputs {
  TensorView source;            // i32 [S, B]
  TensorView lengths;           // i32 [B]
  TensorView decoder, targets;  // i32 [T, B], not given without a decoder
  TensorView dropout;           // i64 [uses, 2], seed and offset of each use of dropout; not given without training
  PassInputs() = default;
  PassInputs(Carver& carver, const PassShape& shape, std::int64_t uses);
};
/// Uses of dropout in a model: one for each layer of the encoder, then of the decoder.
inline std::int64_t dropout_uses(const ModelDescription& model) { return 2 * model.layers; }
/// Writes a batch into inputs on the host that may be larger than it: the rest is PAD, rows of length 0.
void fill_inputs(const PassInputs& inputs, const Batch& batch);

/// Dropout, sums and copies of one pass. Each use of dropout has its own range of the random stream.
class Elementwise {
 public:
  Elementwise(const Setting& setting, float dropout, std::int64_t elements);
  bool drops() const noexcept { return dropout_.has_value(); }
  /// to = dropout(from) + plus; `plus` may be not given. Forward and backward are the same call.
  void drop(const TensorView& to, const ConstTensorView& from, const ConstTensorView& plus, std::uint64_t use) const;
  void add(const TensorView& to, const ConstTensorView& a, const ConstTensorView& b) const;
  void copy(const TensorView& to, const ConstTensorView& from) const;
  std::size_t workspace_bytes() const;

  std::uint64_t dropout_counters() const { return dropout_ ? dropout_->dropout_counters() : 0; }

  Workspace workspace;
  TensorView states;  // i64 [uses, 2]: seeds and offsets of the step at hand

 private:
  std::optional<PointwisePlan> dropout_;
  PointwisePlan add_, copy_;
  Stream stream_;
};

class Encoder {
 public:
  Encoder(const Setting& setting, const PassShape& shape);
  std::size_t workspace_bytes() const;
  void lay_out(Carver& carver, const PassInputs& inputs, const Workspace& workspace);
  void forward(const Elementwise& elementwise) const;
  /// Gradients of everything from the gradient of keys and values; the embedding's is added to what is there.
  void backward(const Elementwise& elementwise) const;
  void add_choices(std::vector<LayerChoice>& choices) const;

  TensorView source;              // i32 [S, B]
  TensorView lengths;             // i32 [B]
  TensorView key_value;           // [S, B, 2H]
  TensorView key_value_gradient;  // [S, B, 2H]

 private:
  struct Layer {
    RecurrentPlan plan;
    TensorView input{};   // [S, B, I], what the LSTM reads
    TensorView output{};  // [S, B, H], the first one 2H: what it writes
    TensorView sum{};     // with the residual, where there is one
    TensorView reserve{};
  };
  bool residual(std::size_t layer) const { return layer >= 2; }
  bool dropped() const { return shape_.training && setting_->model.dropout > 0; }
  void backward_layer(const Layer& layer, std::size_t index, const TensorView& dy, const TensorView& dx) const;

  const Setting* setting_;
  PassShape shape_;
  EmbeddingPlan embedding_;
  std::optional<LinearPlan> projection_;
  LinearPlan key_value_plan_;
  std::vector<Layer> layers_;
  TensorView embedded_, top_;           // [S, B, H]
  TensorView gradient_, inner_, wide_;  // [S, B, H], [S, B, H], [S, B, 2H]: backward only
  Workspace workspace_;
};

class Decoder {
 public:
  Decoder(const Setting& setting, const PassShape& shape);
  std::size_t workspace_bytes() const;
  void lay_out(Carver& carver, const PassInputs& inputs, const Workspace& workspace);
  void forward(const Elementwise& elementwise, const Encoder& encoder) const;
  /// The loss alone.
  void loss() const;
  /// The loss, and all gradients of its mean down to the keys and values of the encoder. The embedding's is written whole.
  void backward(const Elementwise& elementwise, const Encoder& encoder) const;
  void add_choices(std::vector<LayerChoice>& choices) const;

  TensorView input;    // i32 [T, B]
  TensorView targets;  // i32 [T, B]
  TensorView query;    // [T, B, H]
  TensorView lse;      // [B, heads, T]; f64 beside f64

 private:
  struct Layer {
    RecurrentPlan plan;
    TensorView input{};   // [T, B, H], the upper ones 2H: (below, context)
    TensorView output{};  // [T, B, H]
    TensorView sum{};     // with the residual, where there is one
    TensorView reserve{};
  };
  bool residual(std::size_t layer) const { return layer >= 2; }
  bool dropped() const { return shape_.training && setting_->model.dropout > 0; }
  bool single() const { return setting_->model.layers == 1; }
  TensorView below(const TensorView& wide) const { return wide.narrow(2, 0, setting_->model.hidden); }
  TensorView context(const TensorView& wide) const { return wide.narrow(2, setting_->model.hidden, setting_->model.hidden); }
  TensorView place_of_sum(Carver& carver, std::size_t layer) const;
  void attend(const Encoder& encoder) const;
  LossForward loss_tensors() const;
  void backward_layer(const Layer& layer, std::size_t index, const TensorView& dy, const TensorView& dx) const;
  void backward_attention(const Encoder& encoder) const;

  const Setting* setting_;
  PassShape shape_;
  EmbeddingPlan embedding_;
  LinearPlan query_plan_;
  AttentionPlan attention_;
  LossPlan loss_;
  std::vector<Layer> layers_;
  TensorView embedded_;                   // [T, B, H]
  TensorView joined_;                     // [T, B, 2H]: (first layer, context), what the second layer (or the classifier) reads
  TensorView top_;                        // [T, B, H], with one layer 2H: what the classifier reads
  TensorView gradient_, query_gradient_;  // [T, B, H]: backward only
  TensorView wide_, other_wide_;          // [T, B, 2H]: backward only; wide_'s second half sums the context's gradient
  Workspace workspace_;
};

class Pass {
 public:
  Pass(const Setting& setting, const PassShape& shape);
  /// Places everything in the block, which may grow; a pass must do so before each use, since another may have moved the block.
  void place(GrowingBlock& block, Device device);
  std::size_t bytes() const noexcept { return bytes_; }
  std::vector<LayerChoice> choices() const;

  PassShape shape;
  TensorView block;   // u8, the inputs
  PassInputs inputs;  // its parts
  Graph step;         // of a whole training step; not given before the second one, and after the block has moved
  bool ran = false;   // a whole training step, at this place
  Elementwise elementwise;
  Encoder encoder;
  std::optional<Decoder> decoder;

 private:
  void lay_out(Carver& carver);

  std::int64_t uses_ = 0;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace everglow::gnmt
