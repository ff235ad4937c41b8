// Stands in for the oneDNN adapter in a build without oneDNN.
#include "gemm/onednn.hpp"

namespace everglow {

bool has_onednn() { return false; }
bool onednn_multiplies(DType) { return false; }
bool onednn_accepts(const Gemm&) { return false; }
bool onednn_gemm(const Gemm&, int) { return false; }
void onednn_prepare(const Gemm&, int) {}
std::uint64_t onednn_primitives_made() { return 0; }
bool onednn_activates(const Gemm&) { return false; }

}  // namespace everglow
