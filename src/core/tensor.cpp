// Names and conversions of element types and devices, and views as text.
#include <everglow/tensor.hpp>

#include "core/text.hpp"

#include <bit>
#include <charconv>
#include <cstring>

namespace everglow {
namespace {

constexpr std::array dtype_names{"f32", "f16", "bf16", "f64", "i32", "i64", "u8"};
constexpr std::array<std::size_t, 7> dtype_sizes{4, 2, 2, 8, 4, 8, 1};

}  // namespace

std::size_t size_of(DType dtype) noexcept { return dtype_sizes[static_cast<std::size_t>(dtype)]; }
std::string_view name(DType dtype) noexcept { return dtype_names[static_cast<std::size_t>(dtype)]; }

DType parse_dtype(std::string_view text_) {
  for (std::size_t i = 0; i < dtype_names.size(); ++i)
    if (text_ == dtype_names[i]) return static_cast<DType>(i);
  if (text_ == "fp32" || text_ == "float32" || text_ == "float") return DType::f32;
  if (text_ == "fp16" || text_ == "float16" || text_ == "half") return DType::f16;
  if (text_ == "bfloat16") return DType::bf16;
  throw Error(ErrorCode::invalid_argument, "dtype",
              text("expected f32, f16, bf16, f64, i32, i64 or u8 (for example f32), got \"", text_, '"'));
}

float to_float(BFloat16 value) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};  // NaN stays NaN
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

float to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

Half to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x1ffU))};
  if (magnitude >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

std::string to_string(Device device) { return device.kind == DeviceKind::cpu ? std::string("cpu") : text("cuda:", device.index); }

Device parse_device(std::string_view text_) {
  if (text_ == "cpu") return Device::cpu();
  if (text_ == "cuda") return Device::cuda(0);
  if (text_.starts_with("cuda:")) {
    int index = -1;
    const auto digits = text_.substr(5);
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (fault == std::errc() && end == digits.data() + digits.size() && index >= 0) return Device::cuda(index);
  }
  throw Error(ErrorCode::invalid_argument, "device", text("expected cpu or cuda:N (for example cuda:0), got \"", text_, '"'));
}

std::string to_string(const ConstTensorView& view) {
  if (!view.given()) return "not given";
  if (view.rank > max_rank) return text("rank ", view.rank, ' ', name(view.dtype), ' ', to_string(view.device));
  std::string out = "[";
  for (int i = 0; i < view.rank; ++i) out += text(i == 0 ? "" : ", ", view.shape[i]);
  return out + text("] ", name(view.dtype), ' ', to_string(view.device));
}

}  // namespace everglow
