// The oneDNN adapter, built as onednn.cpp or, without oneDNN, as onednn_absent.cpp.
#pragma once

#include "gemm/gemm.hpp"

namespace everglow {

/// Whether oneDNN is built and takes a product of this form (A and B of one type that it has, C of that or f32, plain weights, rows
/// without gaps between elements whose strides do not run backwards, 32 bits of each size).
bool onednn_accepts(const Gemm& product);
/// False, with nothing written, where oneDNN asks for more scratch memory than may be kept or has its reference implementation
/// alone. Its faults come as Error.
bool onednn_gemm(const Gemm& product, int threads);
/// Makes the primitive that onednn_gemm takes for products of this form; their elements are not looked at.
void onednn_prepare(const Gemm& product, int threads);
/// Primitives that were made so far, in all threads.
std::uint64_t onednn_primitives_made();

/// Whether its product ends with the activation that `finish` would write over C.
bool onednn_activates(const Gemm& product);

}  // namespace everglow
