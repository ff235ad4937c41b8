// Small models and random batches for the tests of the translation model.
#pragma once

#include <everglow/gnmt/model.hpp>

#include <algorithm>
#include <cstring>
#include <random>

namespace everglow::gnmt::test {

inline ModelDescription tiny(std::int64_t layers, DType dtype = DType::f32, float dropout = 0) {
  return {.hidden = 6, .layers = layers, .vocabulary = 11, .dropout = dropout, .label_smoothing = 0.1F, .dtype = dtype};
}

/// Random pieces, no PAD among them, with these lengths (without the ends that a batch adds).
inline std::vector<Example> random_examples(std::span<const std::pair<int, int>> lengths, std::int64_t vocabulary,
                                            std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto piece = [&] { return static_cast<std::int32_t>(4 + random() % static_cast<std::uint64_t>(vocabulary - 4)); };
  std::vector<Example> out;
  for (const auto& [source, target] : lengths) {
    Example example;
    for (int i = 0; i < source; ++i) example.source.push_back(piece());
    for (int i = 0; i < target; ++i) example.target.push_back(piece());
    out.push_back(std::move(example));
  }
  return out;
}

inline Batch batch_of(std::span<const Example> examples) {
  std::vector<std::int64_t> all(examples.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  return make_batch(examples, all);
}

/// Three ragged pairs.
inline Batch ragged_batch(std::int64_t vocabulary, std::uint64_t seed = 1) {
  const std::pair<int, int> lengths[] = {{2, 3}, {4, 1}, {1, 4}};
  return batch_of(random_examples(lengths, vocabulary, seed));
}

/// The bytes of every gradient or value, to compare bit by bit.
inline std::vector<std::byte> bytes_of(const Model& model, TensorView Parameter::*part) {
  std::vector<std::byte> out;
  for (const Parameter& parameter : model.parameters()) {
    const TensorView& view = parameter.*part;
    const auto* data = static_cast<const std::byte*>(view.data);
    out.insert(out.end(), data, data + static_cast<std::size_t>(view.elements()) * size_of(view.dtype));
  }
  return out;
}

inline std::vector<double> values_of(const TensorView& view) {
  std::vector<double> out(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = view.dtype == DType::f64 ? static_cast<const double*>(view.data)[i] : static_cast<const float*>(view.data)[i];
  return out;
}

}  // namespace everglow::gnmt::test
