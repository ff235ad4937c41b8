// Where the parts of a corpus come from: a split by hash, and a sample of the built-in number words.
#include <everglow/gnmt/numbers.hpp>
#include <everglow/gnmt/trainer.hpp>

#include "gnmt/hash.hpp"

#include <fmt/format.h>

#include <unordered_set>

namespace everglow::gnmt {
TrainData split_by_hash(std::vector<Pair> pairs, bool valid, bool test) {
  TrainData data;
  for (Pair& pair : pairs) {
    const Split split = split_of(std::string_view(pair.source));
    if (valid && split == Split::valid)
      data.valid.push_back(std::move(pair));
    else if (test && split == Split::test)
      data.test.push_back(std::move(pair));
    else
      data.train.push_back(std::move(pair));
  }
  return data;
}

TrainData sample_numbers(const NumberSample& sample) {
  // A hundredth of the numbers each is valid and test: a larger sample of them does not exist or would take for ever to find.
  if (sample.train < 0 || sample.train > 900'000 || sample.valid < 0 || sample.valid > 5'000 || sample.test < 0 ||
      sample.test > 5'000)
    throw Error(ErrorCode::invalid_argument, "train.numbers",
                fmt::format("expected at most 900000 training, 5000 validation and 5000 test numbers, got {}, {} and {}",
                            sample.train, sample.valid, sample.test));
  TrainData data;
  std::unordered_set<std::int64_t> seen;
  const auto take = [&](std::int64_t n) {
    const Split split = split_of(static_cast<std::uint64_t>(n));
    std::vector<Pair>& part = split == Split::train ? data.train : split == Split::valid ? data.valid : data.test;
    const std::int64_t wanted = split == Split::train ? sample.train : split == Split::valid ? sample.valid : sample.test;
    if (static_cast<std::int64_t>(part.size()) < wanted && seen.insert(n).second) part.push_back({english(n), french(n)});
  };
  // Short numbers are rare in a uniform sample, and people try them first.
  for (std::int64_t n = 0; n < 1000; ++n)
    if (split_of(static_cast<std::uint64_t>(n)) == Split::train) take(n);
  SplitMix64 random(sample.seed);
  const auto complete = [&] {
    return static_cast<std::int64_t>(data.train.size()) == sample.train &&
           static_cast<std::int64_t>(data.valid.size()) == sample.valid &&
           static_cast<std::int64_t>(data.test.size()) == sample.test;
  };
  while (!complete()) take(static_cast<std::int64_t>(random.next() % number_limit));
  return data;
}

}  // namespace everglow::gnmt
