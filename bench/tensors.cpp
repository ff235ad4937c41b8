// Allocates and fills the sets of tensors of a benchmark.
#include "bench/tensors.hpp"

#include <algorithm>
#include <cstring>

namespace everglow::bench {
namespace {

constexpr std::int64_t most_sets = 256;

/// SplitMix64 (Steele, Lea, Flood 2014): fast enough to fill hundreds of megabytes, and the same everywhere.
struct Random {
  std::uint64_t state = 0;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
};

template <class T, class Value>
void fill_each(void* data, std::int64_t elements, const Value& value) {
  T* out = static_cast<T*>(data);
  for (std::int64_t i = 0; i < elements; ++i) out[i] = value();
}

}  // namespace

int TensorSets::add(DType dtype, std::vector<std::int64_t> shape, double low, double high) {
  Tensor tensor{.dtype = dtype, .shape = std::move(shape), .low = low, .high = high, .value = {}, .memory = {}};
  tensor.elements = TensorView(nullptr, dtype, tensor.shape).elements();
  constexpr std::int64_t line = 64;
  tensor.stride = (tensor.elements * static_cast<std::int64_t>(size_of(dtype)) + line - 1) / line * line;
  tensors_.push_back(std::move(tensor));
  return static_cast<int>(tensors_.size()) - 1;
}

int TensorSets::add_indices(DType dtype, std::vector<std::int64_t> shape, std::int64_t count) {
  const int number = add(dtype, std::move(shape));
  tensors_.back().count = count;
  return number;
}

int TensorSets::add_values(std::vector<std::int64_t> shape, std::function<std::int64_t(std::int64_t)> value) {
  const int number = add(DType::i32, std::move(shape));
  tensors_.back().value = std::move(value);
  return number;
}

int TensorSets::add_flags(std::vector<std::int64_t> shape, std::int64_t one_in) {
  return add_indices(DType::u8, std::move(shape), one_in);
}

void TensorSets::allocate(std::int64_t rotate_bytes, std::uint64_t seed) {
  std::int64_t set = 1;
  for (const Tensor& tensor : tensors_) set += tensor.stride;
  sets_ = std::clamp<std::int64_t>((rotate_bytes + set - 1) / set, 2, most_sets);
  for (Tensor& tensor : tensors_) {
    tensor.memory = Buffer(static_cast<std::size_t>(sets_ * tensor.stride), Device::cpu());
    fill(tensor, seed += 1000);
  }
}

void TensorSets::fill(const Tensor& tensor, std::uint64_t seed) const {
  // Zero is zero in every dtype, and each page is touched before anything is timed.
  if (tensor.stride > 0) std::memset(tensor.memory.data(), 0, static_cast<std::size_t>(sets_ * tensor.stride));
  if (tensor.low == tensor.high && tensor.count == 0 && !tensor.value) return;
  Random random{seed};
  const auto real = [&] { return random.uniform(tensor.low, tensor.high); };
  std::int64_t element = 0;
  const auto index = [&] {
    return tensor.value ? tensor.value(element++)
                        : static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(tensor.count));
  };
  for (std::int64_t set = 0; set < sets_; ++set) {
    void* data = static_cast<std::byte*>(tensor.memory.data()) + set * tensor.stride;
    const std::int64_t n = tensor.elements;
    element = 0;
    switch (tensor.dtype) {
      case DType::f32:
        fill_each<float>(data, n, [&] { return static_cast<float>(real()); });
        break;
      case DType::f64:
        fill_each<double>(data, n, real);
        break;
      case DType::f16:
        fill_each<Half>(data, n, [&] { return to_half(static_cast<float>(real())); });
        break;
      case DType::bf16:
        fill_each<BFloat16>(data, n, [&] { return to_bfloat16(static_cast<float>(real())); });
        break;
      case DType::i32:
        fill_each<std::int32_t>(data, n, [&] { return static_cast<std::int32_t>(index()); });
        break;
      case DType::i64:
        fill_each<std::int64_t>(data, n, index);
        break;
      case DType::u8:
        fill_each<std::uint8_t>(data, n, [&] { return static_cast<std::uint8_t>(index() == 0 ? 1 : 0); });
        break;
    }
  }
}

TensorView TensorSets::at(int tensor, std::int64_t set) const {
  const Tensor& t = tensors_[static_cast<std::size_t>(tensor)];
  return {static_cast<std::byte*>(t.memory.data()) + set * t.stride, t.dtype, t.shape};
}

double TensorSets::bytes(std::initializer_list<int> tensors) const {
  double sum = 0;
  for (const int number : tensors) {
    const Tensor& t = tensors_[static_cast<std::size_t>(number)];
    sum += static_cast<double>(t.elements) * static_cast<double>(size_of(t.dtype));
  }
  return sum;
}

}  // namespace everglow::bench
