// SentencePiece behind our own interface: trained from memory, silent, and with errors as exceptions.
#include <everglow/error.hpp>
#include <everglow/gnmt/tokenizer.hpp>

#include "gnmt/hash.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace everglow::gnmt {

struct Tokenizer::Impl {
  std::string model;
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

/// More lines than this teach the pieces nothing new and only cost time; a larger text is thinned evenly.
constexpr std::size_t training_lines = 200'000;

/// Every `step`-th line, in order: no random numbers, so the same text gives the same model.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::span<const std::string> lines) : lines_(lines), used_(std::min(lines.size(), training_lines)) {}
  bool done() const override { return i_ >= used_; }
  void Next() override { ++i_; }
  const std::string& value() const override { return lines_[i_ * lines_.size() / used_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::span<const std::string> lines_;
  std::size_t used_, i_ = 0;
};

/// SentencePiece does not check its models, and a damaged one can make it read past its tables. Ours therefore end with a hash of
/// what stands before, in a field of the protobuf message that SentencePiece leaves to others (number 1009, eight bytes).
constexpr std::string_view seal_key = "\x89\x3F";
constexpr std::size_t seal_bytes = seal_key.size() + sizeof(std::uint64_t);

std::string seal_of(std::string_view model) {
  const std::uint64_t hash = fnv1a(model);
  std::string seal(seal_key);
  for (int shift = 0; shift < 64; shift += 8) seal += static_cast<char>(hash >> shift);
  return seal;
}

/// True where there is a seal (a model that SentencePiece's own programs wrote has none) and it is not that of the bytes before it.
bool broken_seal(std::string_view model) {
  if (model.size() < seal_bytes) return false;
  const std::string_view seal = model.substr(model.size() - seal_bytes);
  return seal.starts_with(seal_key) && seal != seal_of(model.substr(0, model.size() - seal_bytes));
}

sentencepiece::util::Status load(sentencepiece::SentencePieceProcessor& processor, std::string_view model) {
  using sentencepiece::util::StatusCode;
  if (model.empty()) return {StatusCode::kDataLoss, "no bytes"};
  if (broken_seal(model)) return {StatusCode::kDataLoss, "the bytes do not have the hash that they were saved with"};
  return processor.LoadFromSerializedProto(model);
}

}  // namespace

Tokenizer Tokenizer::train(std::span<const std::string> lines, std::int64_t vocabulary) {
  constexpr std::string_view where = "tokenizer.train";
  constexpr std::int64_t largest = 1'000'000;
  if (vocabulary < eos_id + 2 || vocabulary > largest)
    throw Error(ErrorCode::invalid_argument, where,
                fmt::format("vocabulary: expected {} ... {}, got {}", eos_id + 2, largest, vocabulary));
  const auto blank = [](const std::string& line) { return line.find_first_not_of(" \t\r\n") == std::string::npos; };
  if (std::all_of(lines.begin(), lines.end(), blank))
    throw Error(ErrorCode::invalid_argument, where, "lines: expected text, got none");
  const std::unordered_map<std::string, std::string> options{
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(vocabulary)},
      {"hard_vocab_limit", "false"},
      {"pad_id", std::to_string(pad_id)},
      {"unk_id", std::to_string(unk_id)},
      {"bos_id", std::to_string(bos_id)},
      {"eos_id", std::to_string(eos_id)},
      {"normalization_rule_name", "nmt_nfkc"},
      {"max_sentence_length", "65536"},
      {"num_threads", "4"},  // fixed: sums of the threads are added in order of the threads
      {"minloglevel", "3"}};
  Lines sentences(lines);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &sentences, &model);
  if (!status.ok())
    throw Error(
        ErrorCode::invalid_argument, where,
        fmt::format("expected text and a vocabulary (here {}) of at least one piece for each character; SentencePiece says: {}",
                    vocabulary, status.ToString()));
  return from_model(model + seal_of(model));
}

Tokenizer Tokenizer::from_model(std::string_view bytes) {
  constexpr std::string_view where = "tokenizer.from_model";
  auto impl = std::make_shared<Impl>();
  impl->model = bytes;
  const auto status = load(impl->processor, impl->model);
  if (!status.ok())
    throw Error(ErrorCode::io, where, fmt::format("expected a SentencePiece model, got damaged bytes: {}", status.ToString()));
  const auto& processor = impl->processor;
  if (processor.pad_id() != pad_id || processor.unk_id() != unk_id || processor.bos_id() != bos_id || processor.eos_id() != eos_id)
    throw Error(ErrorCode::io, where,
                fmt::format("expected PAD, UNK, BOS, EOS = 0, 1, 2, 3, got {}, {}, {}, {}", processor.pad_id(), processor.unk_id(),
                            processor.bos_id(), processor.eos_id()));
  Tokenizer tokenizer;
  tokenizer.impl_ = std::move(impl);
  return tokenizer;
}

std::int64_t Tokenizer::vocabulary() const { return impl_->processor.GetPieceSize(); }

const std::string& Tokenizer::model() const { return impl_->model; }

std::vector<std::int32_t> Tokenizer::encode(std::string_view line) const {
  std::vector<int> ids;
  const auto status = impl_->processor.Encode(line, &ids);
  if (!status.ok()) throw Error(ErrorCode::invalid_argument, "tokenizer.encode", status.ToString());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> pieces) const {
  for (const std::int32_t id : pieces)
    if (id < 0 || id >= vocabulary())
      throw Error(ErrorCode::invalid_argument, "tokenizer.decode",
                  fmt::format("pieces: expected 0 <= id < {}, got {}", vocabulary(), id));
  std::string line;
  const auto status = impl_->processor.Decode(std::vector<int>(pieces.begin(), pieces.end()), &line);
  if (!status.ok()) throw Error(ErrorCode::invalid_argument, "tokenizer.decode", status.ToString());
  return line;
}

std::string Tokenizer::piece(std::int32_t id) const {
  if (id < 0 || id >= vocabulary())
    throw Error(ErrorCode::invalid_argument, "tokenizer.piece", fmt::format("id: expected 0 <= id < {}, got {}", vocabulary(), id));
  return impl_->processor.IdToPiece(id);
}

}  // namespace everglow::gnmt
