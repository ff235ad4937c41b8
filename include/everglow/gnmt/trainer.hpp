// Trains a translator on parallel text, with checkpoints that resume to the same bits.
#pragma once

#include <everglow/gnmt/model.hpp>
#include <everglow/gnmt/translate.hpp>

#include <functional>

namespace everglow::gnmt {

struct TrainOptions {
  std::string out;  ///< folder of the checkpoints `last.safetensors` and `best.safetensors`; resumed when it has one
  std::int64_t layers = 2, hidden = 256, vocabulary = 8000;
  double dropout = 0.2, label_smoothing = 0.1;
  std::int64_t batch_tokens = 1500;
  double learning_rate = 3e-3;
  std::int64_t warmup = 200;  ///< steps
  double decay_start = 0.6;   ///< part of the run after which the rate is halved, and again at each further tenth
  double clip = 5;
  std::int64_t steps = 0, epochs = 0;
  double minutes = 0;              ///< exactly one of steps, epochs, minutes is positive
  double until_exact = 0;          ///< per cent of exact validation lines that end the run; 0: never
  std::int64_t valid_every = 0;    ///< steps; 0: at the end of each epoch
  std::int64_t valid_lines = 500;  ///< lines translated for validation BLEU
  std::int64_t beam = 5;           ///< of the final test
  std::uint64_t seed = 1;
  std::int64_t max_words = 0;  ///< recorded in the checkpoint
  Device device;
  /// f32, f16 or bf16: of activations and of the weights as the layers read them; the optimiser keeps f32 ones (ModelDescription).
  DType precision = DType::f32;
  PlanOptions plan;
};

/// What a line of progress shows.
struct Progress {
  std::int64_t epoch = 0, step = 0;  ///< the epoch that is running, from 1; at its end still that one
  double part = 0;                   ///< of the run, 0 ... 1
  double loss = 0;                   ///< mean a target token since the last report
  double tokens_per_second = 0;      ///< source + target tokens, EOS included, padding not
  double padding = 0;                ///< share of positions that are padding
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0, seconds_left = 0;
  double loss_scale = 0;         ///< f16; 0: there is none
  std::int64_t skipped = 0;      ///< steps of the run whose gradient was not finite; they count in no schedule
  bool validated = false;        ///< the next fields are fresh
  std::int64_t valid_lines = 0;  ///< of which BLEU is; 0: there is no validation part, and the rest is 0
  double valid_loss = 0, valid_bleu = 0, valid_exact = 0;  ///< nats a token; 0 ... 100; per cent
};

struct TrainData {
  std::vector<Pair> train, valid, test;
};
/// Fills the parts that are wanted from the training pairs, by the hash of the source side (1 % each), and takes them out of
/// training.
TrainData split_by_hash(std::vector<Pair> pairs, bool valid, bool test);
/// Numbers of the built-in corpus as words: a random choice by `seed` of each part, and all training numbers below 1000.
struct NumberSample {
  std::int64_t train = 60'000, valid = 500, test = 500;
  std::uint64_t seed = 1;
};
TrainData sample_numbers(const NumberSample& sample);

struct TrainResult {
  std::int64_t steps = 0, epochs = 0;  ///< of the whole run
  std::int64_t new_steps = 0;          ///< of this call; 0 where the run was over before
  double seconds = 0;
  std::int64_t tokens = 0;               ///< source + target tokens trained on
  bool interrupted = false;              ///< `stop` ended the run: no test was made, the next call goes on
  double test_bleu = 0, test_exact = 0;  ///< 13a; per cent
  std::int64_t test_lines = 0;
  /// What each layer ran; of a run that was already over, what the checkpoint tells: the names of the kernels alone.
  std::vector<LayerChoice> choices;
};

/// Trains (or resumes), calls `report` about once a second and after each validation, and scores the best checkpoint on the test
/// part. `stop` is asked before each step; true saves and ends the run as an interrupt does. A run that goes on gives the same bits
/// as one that was never interrupted, where both have the same threads, the same instruction set (EVERGLOW_ISA) and the same build,
/// or on a card the same card and the same kernels. There steps run ahead of the host by up to most_steps_ahead, and what they came
/// to is told that much later. Throws Error(unsupported) where the device is not there.
/// What would change the model or the order of the batches (layers, hidden, vocabulary,
/// precision, batch_tokens, max_words, seed, training text) must be what the checkpoint has, or an Error(invalid_argument) names
/// it. A longer run is allowed. `best` is the checkpoint of the highest BLEU, or with until_exact of the most exact lines; without
/// a validation part it is the last one. Throws Error(invalid_argument) where the run diverges, and saves nothing of what it came
/// to.
TrainResult train(const TrainOptions& options, const TrainData& data, const std::function<void(const Progress&)>& report,
                  const std::function<bool()>& stop = {});

/// A model and its tokenizer from a checkpoint file or a folder that has `best.safetensors` or `last.safetensors`.
struct LoadedModel {
  Model model;
  Tokenizer tokenizer;
  std::string state;  ///< the training state as JSON
};
LoadedModel load_model(const std::string& path, Device device, const PlanOptions& options);

}  // namespace everglow::gnmt
