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
  DType dtype = DType::f32;  ///< f64 runs on reference rows (tests of the gradient)
  std::int64_t heads() const { return hidden >= 128 ? hidden / 64 : 1; }
};

struct Parameter {
  std::string name;  ///< for example "encoder.0.weight_ih", "encoder.0.weight_ih_reverse", "decoder.1.bias_hh", "attention.query"
  TensorView value;
  TensorView gradient;
  TensorView m, v;  ///< Adam's moments
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

/// Incremental decoding of several sentences, each with `beam` rows: [sentence][beam]. It reads the weights of its model, which
/// must outlive it.
class DecoderState;

class Model {
 public:
  Model(const ModelDescription& description, Device device, const PlanOptions& options);
  ~Model();
  Model(Model&&) noexcept;

  const ModelDescription& description() const;
  std::span<const Parameter> parameters() const;
  TensorView optimizer_step() const;    ///< i64 [1], Adam's counter; kept in a checkpoint
  void initialise(std::uint64_t seed);  ///< every weight and bias uniform in +-0.1, moments and counter zero

  /// Loss and the gradients of its mean over target tokens. The dropout masks depend on (seed, step) alone.
  LossSum forward_backward(const Batch& batch, std::uint64_t seed, std::uint64_t step);
  /// One Adam step with clipping on the gradients at hand; returns the norm before clipping.
  double apply(double rate, double clip);
  /// Loss without dropout and without gradients; label smoothing as in training.
  LossSum evaluate(const Batch& batch);

  /// Encodes the sources of a batch and prepares `beam` decoder rows for each.
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
