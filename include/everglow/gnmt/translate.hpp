// Beam search with incremental state and cached keys.
#pragma once

#include <everglow/gnmt/model.hpp>

namespace everglow::gnmt {

struct SearchOptions {
  std::int64_t beam = 5;             ///< 1: greedy
  double length_penalty = 0.6;       ///< alpha of ((5 + length) / 6)^alpha (GNMT, section 7)
  std::int64_t max_length = 0;       ///< pieces; 0: 2 x source + 10
  std::int64_t batch_tokens = 2000;  ///< source tokens x beam decoded together
};

/// Source tokens x beam that fill a device: what fits a processor's caches does not fill a card.
constexpr std::int64_t batch_tokens_of(DeviceKind kind) { return kind == DeviceKind::cpu ? SearchOptions{}.batch_tokens : 20'000; }

/// One translation for each source, in order; an empty source gives an empty translation.
std::vector<std::vector<std::int32_t>> search(Model& model, std::span<const std::vector<std::int32_t>> sources,
                                              const SearchOptions& options);
std::vector<std::string> translate(Model& model, const Tokenizer& tokenizer, std::span<const std::string> lines,
                                   const SearchOptions& options);

}  // namespace everglow::gnmt
