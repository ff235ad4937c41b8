// Parallel text: reading, filtering, and batches of about equal length by token count.
#pragma once

#include <everglow/gnmt/tokenizer.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::gnmt {

struct Pair {
  std::string source, target;
};

/// UTF-8, "source TAB target" a line. Throws Error(io) with file and line number for a line without a tab or with invalid UTF-8.
std::vector<Pair> read_pairs(const std::string& tsv_file);
/// Two files of equally many lines.
std::vector<Pair> read_pairs(const std::string& source_file, const std::string& target_file);
/// Pairs whose both sides have at most `words` words separated by white space; 0 keeps all.
std::vector<Pair> at_most_words(std::vector<Pair> pairs, std::int64_t words);

/// Index of the first byte of a line that is not UTF-8; npos where all are.
std::size_t find_invalid_utf8(std::string_view line);

/// A pair as pieces, without BOS and EOS.
struct Example {
  std::vector<std::int32_t> source, target;
};
/// `threads` at most; 0: as many as a plan takes, which is EVERGLOW_THREADS, else the cores this process may use.
std::vector<Example> encode(const Tokenizer& tokenizer, std::span<const Pair> pairs, int threads = 0);

/// What a model reads: time-major, padded with PAD. The source ends with EOS; the decoder reads BOS + target and predicts target +
/// EOS.
struct Batch {
  std::int64_t rows = 0, source_steps = 0, target_steps = 0;  // B, S, T
  std::vector<std::int32_t> source;                           // [S, B]
  std::vector<std::int32_t> source_lengths;                   // [B], EOS included
  std::vector<std::int32_t> decoder_input;                    // [T, B]
  std::vector<std::int32_t> targets;                          // [T, B], PAD past the end
  std::vector<std::int32_t> target_lengths;                   // [B], EOS included
  std::int64_t source_tokens = 0, target_tokens = 0;          // EOS included, padding not
};
Batch make_batch(std::span<const Example> examples, std::span<const std::int64_t> indices);
/// Only the source side, for translation.
Batch make_source_batch(std::span<const std::vector<std::int32_t>> sources);

/// Indices of one epoch in batches: sorted by source length (with noise below 2), cut before rows x longest side (target + 1)
/// passes `tokens`, batches shuffled. The same seed gives the same epoch.
std::vector<std::vector<std::int64_t>> make_epoch(std::span<const Example> examples, std::int64_t tokens, std::uint64_t seed);

}  // namespace everglow::gnmt
