// Times work on a card by events around several runs, and makes records of the samples.
#pragma once

#include "bench/record.hpp"

#include <everglow/everglow.hpp>

#include <functional>
#include <string>

namespace everglow::bench {

/// What a record says beside its samples.
struct Subject {
  std::string op{}, line{}, direction{}, kernel{}, dtype{};
  double flops = 0, bytes = 0;  // of one run
};

/// Warmed up; each sample is the mean of as many runs as take a millisecond. `run` takes the stream to work on.
Record timed(const Subject& subject, const std::function<void(const Stream&)>& run);

/// Memory of a card with random numbers of about 1 in magnitude in it, which repeat after a million elements.
class Numbers {
 public:
  /// `row_stride` 0: dense rows.
  Numbers(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride = 0);
  TensorView view() const { return view_; }

 private:
  Buffer memory_;
  TensorView view_;
};

inline constexpr Device card = Device::cuda(0);
std::string card_name();  ///< as its driver says it

}  // namespace everglow::bench
