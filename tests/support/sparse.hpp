// Memory of any size of which only the touched pages exist: views whose offsets pass 2^31 elements need no more than a few.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace everglow::test {

class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = data == MAP_FAILED ? nullptr : data;
    if (data_ != nullptr) madvise(data_, bytes, MADV_NOHUGEPAGE);  // or each touched element costs 2 MiB
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  /// Zeros; null where the machine gives no such address range.
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace everglow::test
