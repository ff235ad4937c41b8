// Pieces of words by SentencePiece (Kudo & Richardson 2018), trained in process. PAD 0, UNK 1, BOS 2, EOS 3.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::gnmt {

inline constexpr std::int32_t pad_id = 0, unk_id = 1, bos_id = 2, eos_id = 3;

class Tokenizer {
 public:
  /// Trains a unigram model on the lines; fewer pieces than asked where the text is small. The same lines give the same model.
  static Tokenizer train(std::span<const std::string> lines, std::int64_t vocabulary);
  /// From the bytes of a SentencePiece model. Throws Error(io) where they are damaged.
  static Tokenizer from_model(std::string_view bytes);

  std::int64_t vocabulary() const;
  const std::string& model() const;  ///< bytes of the SentencePiece model, kept in a checkpoint
  std::vector<std::int32_t> encode(std::string_view line) const;  ///< pieces without BOS and EOS
  std::string decode(std::span<const std::int32_t> pieces) const;
  std::string piece(std::int32_t id) const;  ///< the piece's own text, with U+2581 for a space

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow::gnmt
