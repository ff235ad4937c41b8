// Tensors of proofs and tests: memory with guard bytes around it, poisoned with NaN before each use, and random fills that are
// rounded to the storage type before anyone reads them.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

namespace everglow::proof {

/// The seed of all random inputs: EVERGLOW_TEST_SEED or 1. Printed once by the test main.
std::uint64_t seed();

class HostTensor {
 public:
  HostTensor() = default;
  /// `row_stride` > 0 puts that many elements between rows of the last dimension (the padding is poisoned and guarded).
  HostTensor(DType dtype, std::vector<std::int64_t> shape, std::int64_t row_stride = 0);

  TensorView view() const { return view_; }
  ConstTensorView const_view() const { return view_; }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  /// Fills everything, padding included, with NaN (floats) or an absurd value (integers).
  void poison();
  void fill(double value);
  void uniform(std::uint64_t stream, double low, double high);  // stream numbers keep tensors of a test apart
  void integers(std::uint64_t stream, int low, int high);       // whole numbers low ... high
  void set(const std::vector<double>& values);                  // in logical order
  std::vector<double> values() const;                           // in logical order
  double at(std::int64_t i) const;
  void put(std::int64_t i, double value);
  /// True where the guard bytes and the padding between rows are untouched since poison().
  bool guards_intact() const;

 private:
  std::int64_t offset(std::int64_t i) const;
  std::shared_ptr<std::vector<std::byte>> memory_;
  TensorView view_;
  std::int64_t allocated_ = 0;  // elements, padding included
};

double read_element(const void* data, DType dtype, std::int64_t i);
void write_element(void* data, DType dtype, std::int64_t i, double value);
/// Unit roundoff: 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16, 2^-53 for f64.
double unit_roundoff(DType dtype);

/// The offset of the element that is number i in logical order.
std::int64_t offset_of(const ConstTensorView& view, std::int64_t i);
/// The elements of any view in logical order, and the elements of any view from such a list.
std::vector<double> gathered(const ConstTensorView& view);
void scattered(const TensorView& view, const std::vector<double>& values);

/// Scratch of exactly `bytes` bytes, poisoned, with guards behind it.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  void* data() const { return aligned_; }
  std::size_t bytes() const { return bytes_; }
  bool guards_intact() const;

 private:
  std::shared_ptr<std::vector<std::byte>> memory_;
  void* aligned_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The whole block of host memory, guards included, of the HostTensor or Scratch that an address lies in; null where it is
/// neither's.
struct HostBlock {
  void* memory = nullptr;
  std::size_t bytes = 0;
};
HostBlock host_block_of(const void* address);

/// Reports the position, both values and the share that passed of the worst element where |actual - expected| > bound(i).
/// NaN and infinities must match exactly.
::std::string compare(const std::vector<double>& actual, const std::vector<double>& expected, const std::vector<double>& bound);
::std::string compare(const std::vector<double>& actual, const std::vector<double>& expected, double bound);

}  // namespace everglow::proof
