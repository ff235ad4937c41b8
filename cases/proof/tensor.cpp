// Tensors of proofs and tests.
#include "cases/proof/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>

namespace everglow::proof {
namespace {

constexpr std::size_t guard_bytes = 256;
constexpr std::byte guard_value{0xA5};

/// The blocks that live, by their first byte.
struct Blocks {
  std::mutex lock;
  std::map<std::uintptr_t, std::size_t> bytes_at;
};
Blocks& blocks() {
  static Blocks known;
  return known;
}

/// Memory that host_block_of finds for as long as it lives.
std::shared_ptr<std::vector<std::byte>> make_block(std::size_t bytes, std::byte value) {
  Blocks& known = blocks();
  std::shared_ptr<std::vector<std::byte>> out(new std::vector<std::byte>(bytes, value), [&known](std::vector<std::byte>* memory) {
    const std::lock_guard guard(known.lock);
    known.bytes_at.erase(reinterpret_cast<std::uintptr_t>(memory->data()));
    delete memory;
  });
  const std::lock_guard guard(known.lock);
  known.bytes_at[reinterpret_cast<std::uintptr_t>(out->data())] = bytes;
  return out;
}

}  // namespace

HostBlock host_block_of(const void* address) {
  Blocks& known = blocks();
  const std::lock_guard guard(known.lock);
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  auto after = known.bytes_at.upper_bound(wanted);
  if (after == known.bytes_at.begin()) return {};
  const auto [begin, bytes] = *--after;
  if (wanted - begin >= bytes) return {};
  return {reinterpret_cast<void*>(begin), bytes};
}

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* wish = std::getenv("EVERGLOW_TEST_SEED");
    return wish != nullptr ? std::strtoull(wish, nullptr, 10) : std::uint64_t{1};
  }();
  return value;
}

double read_element(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[i];
    case DType::f64:
      return static_cast<const double*>(data)[i];
    case DType::f16:
      return to_float(static_cast<const Half*>(data)[i]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::i32:
      return static_cast<const std::int32_t*>(data)[i];
    case DType::i64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[i];
  }
  return 0;
}

void write_element(void* data, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::f64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::f16:
      static_cast<Half*>(data)[i] = to_half(static_cast<float>(value));
      break;
    case DType::bf16:
      static_cast<BFloat16*>(data)[i] = to_bfloat16(static_cast<float>(value));
      break;
    case DType::i32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      break;
    case DType::i64:
      static_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
      break;
    case DType::u8:
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
      break;
  }
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape, std::int64_t row_stride) {
  view_ = TensorView(nullptr, dtype, std::span<const std::int64_t>(shape));
  if (row_stride > 0 && view_.rank > 0) {
    std::int64_t stride = row_stride;
    for (int i = view_.rank - 2; i >= 0; --i) view_.strides[i] = stride, stride *= view_.shape[i];
    allocated_ = stride;
  } else {
    allocated_ = view_.elements();
  }
  memory_ = make_block(static_cast<std::size_t>(allocated_) * size_of(dtype) + 2 * guard_bytes, guard_value);
  view_.data = memory_->data() + guard_bytes;
  poison();
}

void HostTensor::poison() {
  const bool floating = view_.dtype <= DType::f64;
  for (std::int64_t i = 0; i < allocated_; ++i)
    write_element(view_.data, view_.dtype, i, floating ? std::numeric_limits<double>::quiet_NaN() : 113.0);
}

std::int64_t HostTensor::offset(std::int64_t i) const { return offset_of(view_, i); }

double HostTensor::at(std::int64_t i) const { return read_element(view_.data, view_.dtype, offset(i)); }
void HostTensor::put(std::int64_t i, double value) { write_element(view_.data, view_.dtype, offset(i), value); }

void HostTensor::fill(double value) {
  for (std::int64_t i = 0; i < view_.elements(); ++i) put(i, value);
}

void HostTensor::uniform(std::uint64_t stream, double low, double high) {
  std::mt19937_64 random(seed() * 1000003 + stream);
  std::uniform_real_distribution<double> draw(low, high);
  for (std::int64_t i = 0; i < view_.elements(); ++i) put(i, draw(random));
}

void HostTensor::integers(std::uint64_t stream, int low, int high) {
  std::mt19937_64 random(seed() * 1000003 + stream);
  std::uniform_int_distribution<int> draw(low, high);
  for (std::int64_t i = 0; i < view_.elements(); ++i) put(i, draw(random));
}

void HostTensor::set(const std::vector<double>& values) { scattered(view_, values); }

std::vector<double> HostTensor::values() const { return gathered(view_); }

bool HostTensor::guards_intact() const {
  const auto& bytes = *memory_;
  for (std::size_t i = 0; i < guard_bytes; ++i)
    if (bytes[i] != guard_value || bytes[bytes.size() - 1 - i] != guard_value) return false;
  std::vector<bool> used(static_cast<std::size_t>(allocated_), false);
  for (std::int64_t i = 0; i < view_.elements(); ++i) used[static_cast<std::size_t>(offset(i))] = true;
  const bool floating = view_.dtype <= DType::f64;
  for (std::int64_t i = 0; i < allocated_; ++i) {
    if (used[static_cast<std::size_t>(i)]) continue;
    const double value = read_element(view_.data, view_.dtype, i);
    if (floating ? !std::isnan(value) : value != 113.0) return false;
  }
  return true;
}

std::int64_t offset_of(const ConstTensorView& view, std::int64_t i) {
  std::int64_t out = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    out += i % view.shape[d] * view.strides[d];
    i /= view.shape[d];
  }
  return out;
}

std::vector<double> gathered(const ConstTensorView& view) {
  std::vector<double> out(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = read_element(view.data, view.dtype, offset_of(view, static_cast<std::int64_t>(i)));
  return out;
}

void scattered(const TensorView& view, const std::vector<double>& values) {
  for (std::int64_t i = 0; i < view.elements(); ++i)
    write_element(view.data, view.dtype, offset_of(view, i), values[static_cast<std::size_t>(i)]);
}

Scratch::Scratch(std::size_t bytes) : bytes_(bytes) {
  memory_ = make_block(bytes + 64 + guard_bytes, std::byte{0xFF});  // all ones is a NaN in every float
  const auto address = reinterpret_cast<std::uintptr_t>(memory_->data());
  aligned_ = reinterpret_cast<void*>((address + 63) / 64 * 64);
  std::memset(static_cast<std::byte*>(aligned_) + bytes, static_cast<int>(guard_value),
              static_cast<std::size_t>(memory_->data() + memory_->size() - (static_cast<std::byte*>(aligned_) + bytes)));
}

bool Scratch::guards_intact() const {
  for (const std::byte* p = static_cast<std::byte*>(aligned_) + bytes_; p != memory_->data() + memory_->size(); ++p)
    if (*p != guard_value) return false;
  return true;
}

std::string compare(const std::vector<double>& actual, const std::vector<double>& expected, const std::vector<double>& bound) {
  if (actual.size() != expected.size())
    return "sizes differ: " + std::to_string(actual.size()) + " and " + std::to_string(expected.size());
  std::size_t failed = 0, worst = 0;
  double worst_excess = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const bool finite = std::isfinite(actual[i]) && std::isfinite(expected[i]);
    const bool same = actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]));
    const double difference = finite ? std::fabs(actual[i] - expected[i]) : same ? 0 : std::numeric_limits<double>::infinity();
    if (difference <= bound[i]) continue;
    ++failed;
    const double excess = difference / std::max(bound[i], 1e-300);
    if (excess > worst_excess) worst_excess = excess, worst = i;
  }
  if (failed == 0) return "";
  std::ostringstream out;
  out.precision(9);
  out << failed << " of " << actual.size() << " differ; worst at " << worst << ": expected " << expected[worst] << ", got "
      << actual[worst] << ", bound " << bound[worst];
  return out.str();
}

std::string compare(const std::vector<double>& actual, const std::vector<double>& expected, double bound) {
  return compare(actual, expected, std::vector<double>(expected.size(), bound));
}

}  // namespace everglow::proof
