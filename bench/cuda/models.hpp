// The translation model on a card, as a benchmark.
#pragma once

#include "bench/record.hpp"

#include <everglow/tensor.hpp>

#include <functional>
#include <string>

namespace everglow::bench {

/// Training steps on random sentences of one length, without padding; those whose line has `words` in it.
void train_models(const std::string& words, Device card, const std::function<void(const Record&)>& take);

}  // namespace everglow::bench
