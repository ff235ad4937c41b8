// Opens the peers' libraries.
#include "bench/cuda/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <climits>
#include <cstdlib>

namespace everglow::bench {

SharedLibrary::SharedLibrary(const std::string& file, const std::vector<std::string>& parts) : file_(file) {
  std::vector<std::string> paths{file, "/usr/local/cuda/lib64/" + file, "/usr/local/cuda/lib/" + file};
  if (const char* folder = std::getenv("EVERGLOW_CUDA_LIBRARIES")) paths.insert(paths.begin(), std::string(folder) + '/' + file);
  for (const std::string& path : paths)
    if (handle_ == nullptr) handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    fault_ = file + " was not found; name its folder in EVERGLOW_CUDA_LIBRARIES";
    return;
  }
  std::array<char, PATH_MAX> folder{};
  if (dlinfo(handle_, RTLD_DI_ORIGIN, folder.data()) != 0) return;
  for (const std::string& part : parts) dlopen((std::string(folder.data()) + '/' + part).c_str(), RTLD_NOW | RTLD_GLOBAL);
}

void* SharedLibrary::address(const char* name) {
  if (handle_ == nullptr) return nullptr;
  void* const found = dlsym(handle_, name);
  if (found == nullptr) fault_ = file_ + " lacks " + name;
  return found;
}

}  // namespace everglow::bench
