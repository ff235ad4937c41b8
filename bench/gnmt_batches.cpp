// Batches of the translation model for benchmarks.
#include "bench/gnmt_batches.hpp"

#include "bench/tensors.hpp"

namespace everglow::bench {

gnmt::Batch random_batch(std::int64_t rows, std::int64_t length, std::int64_t vocabulary, std::uint64_t seed) {
  TensorSets random;
  const int words = random.add_indices(DType::i32, {rows, 2, length}, vocabulary - special);
  random.allocate({.seed = seed});
  const auto* word = static_cast<const std::int32_t*>(random.at(words, 0).data);
  std::vector<gnmt::Example> examples(static_cast<std::size_t>(rows));
  std::vector<std::int64_t> indices;
  for (gnmt::Example& example : examples) {
    for (std::vector<std::int32_t>* side : {&example.source, &example.target})
      for (std::int64_t i = 0; i < length; ++i) side->push_back(static_cast<std::int32_t>(special) + *word++);
    indices.push_back(std::ssize(indices));
  }
  return gnmt::make_batch(examples, indices);
}

}  // namespace everglow::bench
