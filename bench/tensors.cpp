// Allocates and fills the sets of tensors of a benchmark.
#include "bench/tensors.hpp"

#include <algorithm>
#include <cstring>

namespace everglow::bench {
namespace {

constexpr std::int64_t most_sets = 256;
constexpr std::int64_t most_sets_on_card = 32;  // with a graph for each, and preparing all of them before a backward run
constexpr std::int64_t repeated = 1000003;      // elements that are made on the host for a card; a prime, so that rows differ

/// SplitMix64 (Steele, Lea, Flood 2014): fast enough to fill hundreds of megabytes, and the same everywhere.
struct Random {
  std::uint64_t state = 0;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t count) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(count)); }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
};

template <class T, class Value>
void fill_each(void* data, std::int64_t elements, const Value& value) {
  T* out = static_cast<T*>(data);
  for (std::int64_t i = 0; i < elements; ++i) out[i] = value();
}

/// Elements of a dtype at `data`: real() for floats, index() for whole numbers.
template <class Real, class Index>
void fill_elements(DType dtype, void* data, std::int64_t n, const Real& real, const Index& index) {
  switch (dtype) {
    case DType::f32:
      return fill_each<float>(data, n, [&] { return static_cast<float>(real()); });
    case DType::f64:
      return fill_each<double>(data, n, real);
    case DType::f16:
      return fill_each<Half>(data, n, [&] { return to_half(static_cast<float>(real())); });
    case DType::bf16:
      return fill_each<BFloat16>(data, n, [&] { return to_bfloat16(static_cast<float>(real())); });
    case DType::i32:
      return fill_each<std::int32_t>(data, n, [&] { return static_cast<std::int32_t>(index()); });
    case DType::i64:
      return fill_each<std::int64_t>(data, n, index);
    case DType::u8:
      return fill_each<std::uint8_t>(data, n, [&] { return static_cast<std::uint8_t>(index() == 0 ? 1 : 0); });
  }
}

/// The block again and again in the memory of a card: once from the host, then twice as much with each copy.
void repeat(const Buffer& memory, const std::vector<std::byte>& block) {
  const auto bytes = static_cast<std::int64_t>(memory.bytes());
  const std::int64_t first = std::min<std::int64_t>(bytes, std::ssize(block));
  if (first == 0) return;
  const TensorView all(memory.data(), DType::u8, {bytes}, memory.device());
  const Stream stream{memory.device(), nullptr};
  copy(all.narrow(0, 0, first), ConstTensorView(block.data(), DType::u8, {first}), stream);
  for (std::int64_t done = first; done < bytes; done *= 2) {
    const std::int64_t n = std::min(done, bytes - done);
    copy(all.narrow(0, done, n), all.narrow(0, 0, n), stream);
  }
  stream.synchronize();
}

}  // namespace

void fill_zero(const Buffer& memory) {
  if (memory.bytes() == 0) return;
  if (memory.device().kind == DeviceKind::cpu)
    std::memset(memory.data(), 0, memory.bytes());
  else
    repeat(memory, std::vector<std::byte>(1 << 20));
}

int TensorSets::add(DType dtype, std::vector<std::int64_t> shape, double low, double high, std::int64_t row_stride) {
  Tensor tensor{.dtype = dtype, .shape = std::move(shape), .low = low, .high = high, .value = {}, .memory = {}};
  tensor.elements = TensorView(nullptr, dtype, tensor.shape).elements();
  if (row_stride > tensor.shape.back())
    tensor.row_stride = row_stride, tensor.elements /= std::max<std::int64_t>(tensor.shape.back(), 1),
    tensor.elements *= row_stride;
  constexpr std::int64_t line = 256;  // what vendors' kernels like
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

void TensorSets::allocate(const Places& places) {
  std::int64_t set = 1;
  for (const Tensor& tensor : tensors_) set += tensor.stride;
  const bool on_cpu = places.device.kind == DeviceKind::cpu;
  sets_ = places.sets > 0
              ? places.sets
              : std::clamp<std::int64_t>((places.rotate_bytes + set - 1) / set, 2, on_cpu ? most_sets : most_sets_on_card);
  std::uint64_t seed = places.seed;
  for (Tensor& tensor : tensors_) {
    tensor.memory = Buffer(static_cast<std::size_t>(sets_ * tensor.stride), places.device);
    seed += 1000;
    if (on_cpu)
      fill_on_cpu(tensor, seed);
    else
      fill_on_card(tensor, seed);
  }
}

void TensorSets::fill_on_cpu(const Tensor& tensor, std::uint64_t seed) const {
  // Zero is zero in every dtype, and each page is touched before anything is timed.
  fill_zero(tensor.memory);
  if (tensor.low == tensor.high && tensor.count == 0 && !tensor.value) return;
  Random random{seed};
  std::int64_t element = 0;
  const auto real = [&] { return random.uniform(tensor.low, tensor.high); };
  const auto index = [&] { return tensor.value ? tensor.value(element++) : random.below(tensor.count); };
  for (std::int64_t set = 0; set < sets_; ++set) {
    element = 0;
    fill_elements(tensor.dtype, static_cast<std::byte*>(tensor.memory.data()) + set * tensor.stride, tensor.elements, real, index);
  }
}

void TensorSets::fill_on_card(const Tensor& tensor, std::uint64_t seed) const {
  if (tensor.low == tensor.high && tensor.count == 0 && !tensor.value) return fill_zero(tensor.memory);
  Random random{seed};
  const auto real = [&] { return random.uniform(tensor.low, tensor.high); };
  if (tensor.low != tensor.high) {
    std::vector<std::byte> block(static_cast<std::size_t>(repeated) * size_of(tensor.dtype));
    fill_elements(tensor.dtype, block.data(), repeated, real, [] { return std::int64_t{0}; });
    return repeat(tensor.memory, block);
  }
  // Whole numbers have a meaning at their place.
  std::vector<std::byte> all(tensor.memory.bytes());
  for (std::int64_t set = 0; set < sets_; ++set) {
    std::int64_t element = 0;
    const auto index = [&] { return tensor.value ? tensor.value(element++) : random.below(tensor.count); };
    fill_elements(tensor.dtype, all.data() + set * tensor.stride, tensor.elements, real, index);
  }
  repeat(tensor.memory, all);
}

TensorView TensorSets::at(int tensor, std::int64_t set) const {
  const Tensor& t = tensors_[static_cast<std::size_t>(tensor)];
  TensorView out(static_cast<std::byte*>(t.memory.data()) + set * t.stride, t.dtype, t.shape, t.memory.device());
  if (t.row_stride > 0)
    for (int i = 0; i + 1 < out.rank; ++i)
      out.strides[static_cast<std::size_t>(i)] = out.strides[static_cast<std::size_t>(i)] / t.shape.back() * t.row_stride;
  return out;
}

double TensorSets::bytes(std::initializer_list<int> tensors) const {
  double sum = 0;
  for (const int number : tensors) {
    const Tensor& t = tensors_[static_cast<std::size_t>(number)];
    sum += static_cast<double>(TensorView(nullptr, t.dtype, t.shape).elements()) * static_cast<double>(size_of(t.dtype));
  }
  return sum;
}

}  // namespace everglow::bench
