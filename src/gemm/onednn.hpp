// The oneDNN adapter, built as onednn.cpp or, without oneDNN, as onednn_absent.cpp.
#pragma once

#include "gemm/gemm.hpp"

namespace everglow {

/// Whether oneDNN is built and takes a product of this form (strides that do not run backwards, 32 bits of each size).
bool onednn_accepts(const Gemm& product);
/// False, with nothing written, where oneDNN asks for more scratch memory than may be kept. Its faults come as Error.
bool onednn_gemm(const Gemm& product, int threads);

}  // namespace everglow
