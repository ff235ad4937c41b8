// The tensors of what is timed. They lie in two pieces of memory, one that is read and one that is written, and a run finds its own
// where the last runs left nothing in a cache: the runs take turns on sets of tensors, and what they read is together twice the
// last cache.
#pragma once

#include <everglow/everglow.hpp>

#include <cstdint>
#include <vector>

namespace everglow::cli {

class OperandMemory {
 public:
  /// As much as the turns need; more where one set of tensors does.
  OperandMemory();
  /// Throws Error(out_of_memory) where that is more than half of the machine's memory.
  void reserve(std::int64_t read, std::int64_t written);
  std::byte* read() const { return static_cast<std::byte*>(read_.data()); }
  std::byte* written() const { return static_cast<std::byte*>(written_.data()); }
  std::int64_t read_bytes() const { return static_cast<std::int64_t>(read_.bytes()); }
  std::int64_t written_bytes() const { return static_cast<std::int64_t>(written_.bytes()); }

 private:
  Buffer read_, written_;
};

/// One set of tensors, as often as the memory holds it. The memory must live as long.
class Operands {
 public:
  /// `warm`: one set for all runs, which stays in the caches.
  explicit Operands(OperandMemory& memory, bool warm = false) : memory_(&memory), warm_(warm) {}
  int read(DType dtype, std::vector<std::int64_t> shape) { return add(dtype, std::move(shape), false); }
  int written(DType dtype, std::vector<std::int64_t> shape) { return add(dtype, std::move(shape), true); }
  /// After the last tensor.
  void seal();
  TensorView at(int tensor, std::int64_t turn) const;

 private:
  struct Tensor {
    TensorView view;
    std::int64_t offset;
    bool written;
  };
  int add(DType dtype, std::vector<std::int64_t> shape, bool written);
  OperandMemory* memory_;
  bool warm_;
  std::vector<Tensor> tensors_;
  std::int64_t set_bytes_[2] = {64, 64}, sets_[2] = {1, 1};  // read, written
};

}  // namespace everglow::cli
