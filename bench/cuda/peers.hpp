// Peers on a card, in the same process: plain calls of cuBLASLt, and cuDNN's recurrent layers with each algorithm forced. Both
// libraries are opened at run time; where one is missing there are no rows of it.
#pragma once

#include "bench/peers.hpp"

namespace everglow::bench {

/// One row; none for an activation that cuBLASLt does not end a product with.
std::vector<Row> cublaslt_linear(const LinearDescription& description, const LinearSizes& sizes,
                                 const std::shared_ptr<const LinearTensors>& tensors, const Settings& settings);
/// A row for each algorithm that accepts the layer; resets, rows of different lengths and f64 have none.
std::vector<Row> cudnn_recurrent(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                 const std::shared_ptr<const RecurrentTensors>& tensors, const Settings& settings);
/// Why the library cannot be had; empty: it can.
std::string cublaslt_fault();
std::string cudnn_fault();
/// Both, where there are any.
std::vector<std::string> missing_peers();

}  // namespace everglow::bench
