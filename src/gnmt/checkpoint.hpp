// A checkpoint: one safetensors file with the weights, Adam's moments and counter, the SentencePiece model as bytes, and the state
// of the run as JSON in the file's metadata. A run that continues from it gives the same bits as one that was never interrupted.
#pragma once

#include <everglow/gnmt/model.hpp>
#include <everglow/gnmt/safetensors.hpp>
#include <everglow/gnmt/tokenizer.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace everglow::gnmt {

struct TrainState {
  ModelDescription model;

  // What fixes the order of the batches; a resume must bring the same.
  std::int64_t asked_vocabulary = 0;  // pieces asked for; the model's vocabulary is what SentencePiece found
  std::int64_t batch_tokens = 0, max_words = 0;
  std::uint64_t seed = 0;
  std::int64_t training_pairs = 0;
  std::uint64_t training_hash = 0;

  // Where the run stands.
  std::int64_t step = 0;      // without the skipped ones
  std::int64_t skipped = 0;   // steps whose gradient was not finite
  std::int64_t epoch = 0;     // whole epochs done
  std::int64_t position = 0;  // batches done in the epoch that is running
  std::int64_t tokens = 0;    // source + target tokens trained on
  double seconds = 0;

  // The best validation so far; best_step -1: none yet.
  std::int64_t best_step = -1, validated_step = -1;
  double best_bleu = 0, best_exact = 0, best_loss = 0;

  // What computed it, for people.
  std::string version, isa, device;
  int threads = 0;
  std::vector<std::pair<std::string, std::string>> kernels;  // layer, kernel
};

std::string to_json(const TrainState& state);
/// Throws Error(io) that names `file` where a field is missing, of another type or out of its range, or the format is newer than
/// this program.
TrainState state_from_json(const std::string& json, const std::string& file);

void save_checkpoint(const std::string& file, const Model& model, const Tokenizer& tokenizer, const TrainState& state);

/// An opened checkpoint, whose tensors have the sizes that its state tells of. Every fault is an Error(io) that names the file,
/// what was expected and what came.
class Checkpoint {
 public:
  explicit Checkpoint(std::string file);
  const TrainState& state() const { return state_; }
  Tokenizer tokenizer() const;
  /// Copies weights, moments, Adam's counter and the loss scale into a model of the same description, on any device.
  void restore(Model& model) const;

 private:
  void check_sizes() const;
  ConstTensorView checked(const std::string& name, const ConstTensorView& like) const;

  std::string name_;
  SafetensorsFile file_;
  TrainState state_;
};

}  // namespace everglow::gnmt
