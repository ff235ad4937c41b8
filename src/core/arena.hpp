// Hands out parts of one block. With no block it only counts, so that the size of a workspace and the pointers into it come
// from the same code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace everglow {

class Arena {
 public:
  static constexpr std::size_t alignment = 64;
  explicit Arena(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  /// `count` elements on a cache line; null while counting.
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t offset = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + alignment - 1) / alignment * alignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  std::size_t bytes() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace everglow
