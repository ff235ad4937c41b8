// A shared library that is opened when it is first asked for, and the functions that are looked up in it.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

namespace everglow::bench {

class SharedLibrary {
 public:
  /// The first file that opens: in the folder that EVERGLOW_CUDA_LIBRARIES names, in the loader's own places, in the toolkit. Its
  /// `parts` are opened beside it, in this order, before it looks for them itself: another version may come first on the path.
  explicit SharedLibrary(const std::string& file, const std::vector<std::string>& parts = {});
  /// Finds a function; notes a fault where it is missing.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(address(name));
  }
  const std::string& fault() const { return fault_; }  // empty: it is there with all that was looked up

 private:
  void* address(const char* name);
  std::string file_, fault_;
  void* handle_ = nullptr;
};

}  // namespace everglow::bench
