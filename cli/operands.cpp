// Memory of the tensors that are timed.
#include "cli/operands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace everglow::cli {
namespace {

constexpr std::int64_t mebibyte = 1 << 20, line = 64;

/// Twice the last cache, 64 to 256 MiB, of what is read and of what is written.
std::int64_t rotation() { return std::clamp(2 * DeviceDescription(Device::cpu()).figures.l3.bytes, 64 * mebibyte, 256 * mebibyte); }

/// Ordinary numbers in f32 (0.008), f16 (1) and bf16 (0.008): times must not depend on denormal ones.
constexpr std::uint16_t pattern = 0x3c00;

}  // namespace

OperandMemory::OperandMemory() { reserve(rotation(), rotation()); }

void OperandMemory::reserve(std::int64_t read, std::int64_t written) {
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double wanted = static_cast<double>(read) + static_cast<double>(written);
  if (wanted > memory / 2)
    throw Error(ErrorCode::out_of_memory, "measure",
                fmt::format("expected tensors that fill at most half of {:.1f} GiB, got {:.1f} GiB", memory / (1 << 30),
                            wanted / (1 << 30)));
  if (read > read_bytes()) {
    read_ = Buffer(static_cast<std::size_t>(read), Device::cpu());
    std::fill_n(reinterpret_cast<std::uint16_t*>(read_.data()), read / 2, pattern);
  }
  if (written > written_bytes()) {
    written_ = Buffer(static_cast<std::size_t>(written), Device::cpu());
    std::memset(written_.data(), 0, static_cast<std::size_t>(written));
  }
}

int Operands::add(DType dtype, std::vector<std::int64_t> shape, bool written) {
  const TensorView view(nullptr, dtype, shape);
  std::int64_t& bytes = set_bytes_[written ? 1 : 0];
  tensors_.push_back({view, bytes, written});
  bytes += (view.elements() * static_cast<std::int64_t>(size_of(dtype)) + line - 1) / line * line;
  return static_cast<int>(tensors_.size()) - 1;
}

void Operands::seal() {
  memory_->reserve(set_bytes_[0], set_bytes_[1]);
  if (warm_) return;
  sets_[0] = std::max<std::int64_t>(memory_->read_bytes() / set_bytes_[0], 1);
  sets_[1] = std::max<std::int64_t>(memory_->written_bytes() / set_bytes_[1], 1);
}

TensorView Operands::at(int tensor, std::int64_t turn) const {
  if (tensor < 0) return {};
  const Tensor& t = tensors_[static_cast<std::size_t>(tensor)];
  const int kind = t.written ? 1 : 0;
  TensorView out = t.view;
  out.data = (t.written ? memory_->written() : memory_->read()) + t.offset + turn % sets_[kind] * set_bytes_[kind];
  return out;
}

}  // namespace everglow::cli
