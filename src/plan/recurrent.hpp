// Recurrent layers: products, where the recurrent matrix can stay, what a step costs, and which kernels other libraries pick.
#pragma once

#include <everglow/recurrent.hpp>

#include "plan/gemm.hpp"

#include <vector>

namespace everglow::plan {

/// Products of every layer and direction. Those of the recurrence run once a step.
std::vector<ExplanationGemm> recurrent_gemms(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                             const Machine& machine);

/// Where R of one layer and direction stays, in how many groups, and the cost of a forward step.
ExplanationResidency residency_of(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                  const DeviceFigures& figures, const Machine& machine);

/// Whether some partition holds R, whatever the batch.
bool fits_on_chip(const RecurrentDescription& description, const DeviceFigures& figures, std::int64_t element);

/// cuDNN's and PyTorch's rules (PyTorch's aten/src/ATen/native/cudnn/RNN.cpp; cuDNN's developer guide; NVIDIA's recurrent guide).
std::vector<ExplanationPeer> recurrent_peers(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                             const DeviceFigures& figures);

/// Fills gemms, residency, peers, advice, time and floor. `kernel` of the explanation says whose loop is predicted: without one of
/// ours it is cuDNN's, resident where its rule allows and else one product a step.
void explain_recurrent(const RecurrentDescription& description, const RecurrentSizes& sizes, const DeviceFigures& figures,
                       const Machine& machine, Explanation& out);

}  // namespace everglow::plan
