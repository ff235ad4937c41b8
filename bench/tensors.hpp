// The tensors of a benchmark: each exists several times, as sets that the runs take in turn, so that together they are larger than
// the caches and a run finds its inputs where a real program would: in memory.
#pragma once

#include <everglow/runtime.hpp>
#include <everglow/tensor.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace everglow::bench {

/// Where sets lie and how many there are: `sets`, or as many as reach `rotate_bytes` together, at least 2.
struct Places {
  Device device = Device::cpu();
  std::int64_t rotate_bytes = 0;
  std::int64_t sets = 0;
  std::uint64_t seed = 1;
};

class TensorSets {
 public:
  /// Declares a tensor and returns its number. Uniform in low ... high; zero where both are 0. The rows of the last dimension are
  /// `row_stride` elements apart, or dense.
  int add(DType dtype, std::vector<std::int64_t> shape, double low = 0, double high = 0, std::int64_t row_stride = 0);
  /// Declares whole numbers 0 ... count - 1, of dtype i32 or i64.
  int add_indices(DType dtype, std::vector<std::int64_t> shape, std::int64_t count);
  /// Declares i32 whose element i is value(i) in every set.
  int add_values(std::vector<std::int64_t> shape, std::function<std::int64_t(std::int64_t)> value);
  /// Declares u8 of which one in so many is 1 and the others are 0.
  int add_flags(std::vector<std::int64_t> shape, std::int64_t one_in);
  /// Makes the sets and fills them. On a card the numbers repeat after a million.
  void allocate(const Places& places);

  std::int64_t sets() const noexcept { return sets_; }
  TensorView at(int tensor, std::int64_t set) const;
  /// Bytes of the named tensors, for the traffic of a pass.
  double bytes(std::initializer_list<int> tensors) const;

 private:
  struct Tensor {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    double low = 0, high = 0;
    std::int64_t count = 0;  // of the indices
    std::function<std::int64_t(std::int64_t)> value{};
    std::int64_t row_stride = 0;
    std::int64_t elements = 0;  // what lies between rows too
    std::int64_t stride = 0;    // bytes from set to set
    Buffer memory;
  };
  void fill_on_cpu(const Tensor& tensor, std::uint64_t seed) const;
  void fill_on_card(const Tensor& tensor, std::uint64_t seed) const;
  std::vector<Tensor> tensors_;
  std::int64_t sets_ = 0;
};

/// Fills a device's memory with bytes of 0.
void fill_zero(const Buffer& memory);

}  // namespace everglow::bench
