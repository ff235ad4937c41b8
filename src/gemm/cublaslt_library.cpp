// Opens cuBLASLt.
#include "gemm/cublaslt_library.hpp"

#include "core/text.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace everglow::cublaslt {
namespace {

/// The first file that opens. Of the toolkit's major version: others have other structures.
void* open(std::string& fault) {
  const std::string file = text("libcublasLt.so.", CUBLAS_VER_MAJOR);
  std::vector<std::string> paths{file, text("/usr/local/cuda/lib64/", file),
                                 text("/usr/local/cuda-", CUBLAS_VER_MAJOR, "/lib64/", file)};
  if (const char* folder = std::getenv("EVERGLOW_CUDA_LIBRARIES")) paths.insert(paths.begin(), text(folder, '/', file));
  for (const std::string& path : paths)
    if (void* found = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return found;
  fault = text("CUDA: ", file, " was not found; name its folder in EVERGLOW_CUDA_LIBRARIES");
  return nullptr;
}

Library load() {
  Library out;
  void* const file = open(out.fault);
  if (file == nullptr) return out;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    if (function == nullptr) out.fault = text("CUDA: cuBLASLt lacks ", name);
  };
  find(out.create, "cublasLtCreate");
  find(out.get_version, "cublasLtGetVersion");
  find(out.status_name, "cublasLtGetStatusName");
  find(out.matmul, "cublasLtMatmul");
  find(out.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(out.algorithm_check, "cublasLtMatmulAlgoCheck");
  find(out.config, "cublasLtMatmulAlgoConfigGetAttribute");
  find(out.layout_create, "cublasLtMatrixLayoutCreate");
  find(out.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(out.desc_create, "cublasLtMatmulDescCreate");
  find(out.desc_destroy, "cublasLtMatmulDescDestroy");
  find(out.desc_set, "cublasLtMatmulDescSetAttribute");
  find(out.preference_create, "cublasLtMatmulPreferenceCreate");
  find(out.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(out.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  if (!out.fault.empty()) return out;
  const std::size_t version = out.get_version();
  out.version = text("cuBLASLt ", version / 10000, '.', version / 100 % 100, '.', version % 100);
  return out;
}

}  // namespace

const Library& library() {
  static const Library opened = load();
  return opened;
}

}  // namespace everglow::cublaslt
