// A GNMT-style translator (Wu et al., arXiv 1609.08144; wiring of NVIDIA's v2) made of Everglow's public layers.
// Encoder: embedding; L1 bidirectional LSTM(H -> H each way); L2 LSTM(2H -> H); L3... LSTM(H -> H) with residual x + out. With one
// layer: a linear 2H -> H after L1. Decoder: embedding; L1 LSTM(H -> H); multi-head attention whose queries are L1's outputs and
// whose keys and values are the encoder's top outputs, each through its own H x H linear without bias; L2 LSTM(concat(L1 out,
// context) -> H); L3... LSTM(concat(prev, context) -> H) with residual prev + out. Classifier H -> V with bias (2H -> V with one
// layer).
#pragma once

#include <everglow/everglow.hpp>
#include <everglow/gnmt/corpus.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace everglow::gnmt {

struct ModelDescription {
  std::int64_t hidden = 256;
  std::int64_t layers = 2;      ///< of the encoder and of the decoder
  std::int64_t vocabulary = 0;  ///< joint: encoder and decoder share one embedding
  float dropout = 0.2F;         ///< on both embeddings and on the input of every LSTM above the first (not on the context)
  float label_smoothing = 0.1F;
  /// Of the activations, and of the weights as the layers read them. f16 and bf16 keep f32 weights beside, from which the optimiser
  /// makes the others; f16 also scales its loss (first_loss_scale, then as AdamStep::scaler). f64 runs on a CPU's reference rows
  /// (tests of the gradient).
  DType dtype = DType::f32;
  std::int64_t heads() const { return hidden >= 128 ? hidden / 64 : 1; }
};

inline constexpr float first_loss_scale = 65536;
/// How many steps of Model::train_step may be on their way at once.
inline constexpr std::int64_t most_steps_ahead = 8;

/// Tensors are f32, f64 in a model of f64, and lie on the model's device.
struct Parameter {
  std::string name;  ///< for example "encoder.0.weight_ih", "encoder.0.weight_ih_reverse", "decoder.1.bias_hh", "attention.query"
  TensorView value;
  TensorView gradient;  ///< times the loss scale where there is one
  TensorView m, v;      ///< Adam's moments
};

/// Which row each layer's plan took, for people: {"encoder 0 (recurrent 256 -> 256, both ways)", explanation}.
struct LayerChoice {
  std::string layer;
  Explanation explanation;
};

struct LossSum {
  double loss = 0;  ///< sum over counted target tokens, nats
  std::int64_t tokens = 0;
};

/// What a batch takes of the device: its rows and the steps of both sides.
struct BatchSizes {
  std::int64_t rows = 0, source_steps = 0, target_steps = 0;
};

/// A training step that the host does not wait for.
struct TrainStep {
  std::uint64_t seed = 0, step = 0;  ///< the dropout masks depend on them alone
  double clip = 0;                   ///< largest norm of the gradient; 0: none
  /// The rate, and with a loss scale also the rates where 1, 2, ... of the steps whose results are not taken yet turn out to have
  /// been skipped; the last one stands for all further. A schedule that counts no skipped step is kept without waiting for one.
  std::span<const double> rates;
};

/// What a training step came to.
struct StepResult {
  LossSum loss;
  double norm = 0;        ///< of the gradient, before clipping
  double loss_scale = 1;  ///< after the step; 1 where there is none
  bool skipped = false;   ///< a gradient was not finite, the weights stay: with a loss scale that is halved, else for ever
};

/// Incremental decoding of several sentences, each with `beam` rows: [sentence][beam]. It reads the weights of its model, which
/// must outlive it.
class DecoderState;

class Model {
 public:
  /// Throws Error(invalid_argument) where no model can be like this, Error(unsupported) where the device is not there, for a type
  /// that is none of f32, f16, bf16 and f64, and for f64 on a card.
  Model(const ModelDescription& description, Device device, const PlanOptions& options);
  ~Model();
  Model(Model&&) noexcept;

  const ModelDescription& description() const;
  std::span<const Parameter> parameters() const;
  TensorView optimizer_step() const;    ///< i64 [1], Adam's counter; kept in a checkpoint
  TensorView loss_scaler() const;       ///< f32 [3] as AdamStep::scaler; kept in a checkpoint of f16
  void initialise(std::uint64_t seed);  ///< every weight and bias uniform in +-0.1, moments and counter zero
  /// After a caller has written parameters, moments, counter or scaler: makes the 16-bit weights again. No step may be on its way.
  void weights_changed();

  /// Loss and the gradients of its mean over target tokens. The dropout masks depend on (seed, step) alone.
  LossSum forward_backward(const Batch& batch, std::uint64_t seed, std::uint64_t step);
  /// One Adam step with clipping on the gradients at hand; returns the norm before clipping.
  double apply(double rate, double clip);
  /// Forward, backward and Adam in one. On a card the call returns once the work is in order on the model's stream; it waits at
  /// the latest where most_steps_ahead steps are on their way. From the second batch of the same padded sizes on the work is a
  /// graph, with the bits of a plain run. Sizes are padded so that batches share graphs: rows without source or targets count
  /// nothing.
  void train_step(const Batch& batch, const TrainStep& step);
  /// The results of steps since the last call, in order: all of them with `wait`, else those that train_step has waited for.
  std::vector<StepResult> take_results(bool wait);
  /// Makes ready for train_step on batches of these sizes, so that none of them asks for memory of the card.
  void reserve(std::span<const BatchSizes> sizes);

  /// Loss without dropout and without gradients; label smoothing as in training.
  LossSum evaluate(const Batch& batch);

  /// In f32 (or f64) whatever the model's type is, as all decoding: encodes the sources of a batch and prepares `beam` decoder rows
  /// for each.
  std::unique_ptr<DecoderState> start(const Batch& sources, std::int64_t beam);
  /// Feeds one token to each row [B·beam] after taking over the state of row parents[r]; returns the log-probabilities f32
  /// [B·beam, V], valid until the next call. Each group of `beam` rows takes over rows of one sentence, sentences in order; a
  /// sentence that no group names leaves the batch, and from then on rows count without it. The first call's parents count from 0.
  ConstTensorView step(DecoderState& state, std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents);
  /// Attention probabilities, mean over heads, of a batch of one pair with a given target: [T, S].
  std::vector<std::vector<double>> attention(const Batch& pair);
  /// Rows that the plans of the last training batch (or decoding) took.
  std::vector<LayerChoice> choices() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class DecoderState {
 public:
  virtual ~DecoderState() = default;
};

}  // namespace everglow::gnmt
