// Batches of the translation model for benchmarks.
#pragma once

#include <everglow/gnmt/model.hpp>

namespace everglow::bench {

inline constexpr std::int64_t special = 4;  // PAD, UNK, BOS, EOS

/// Pieces above the special ones; every sentence is as long as the others, so nothing is padding. `length` is without EOS.
gnmt::Batch random_batch(std::int64_t rows, std::int64_t length, std::int64_t vocabulary, std::uint64_t seed);

}  // namespace everglow::bench
