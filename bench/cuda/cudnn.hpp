// The functions of cuDNN's recurrent layers, found at run time.
#pragma once

#include "bench/cuda/library.hpp"

#include <cudnn_adv.h>

namespace everglow::bench {

/// A part of cuDNN, which is several libraries: "libcudnn_ops.so.9".
inline std::string cudnn_file(const std::string& part) { return "libcudnn" + part + ".so." + std::to_string(CUDNN_MAJOR); }

struct Cudnn {
  SharedLibrary file{cudnn_file(""), {cudnn_file("_graph"), cudnn_file("_ops"), cudnn_file("_adv")}};
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) error_text = nullptr;
  decltype(&cudnnCreateTensorDescriptor) create_tensor = nullptr;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor = nullptr;
  decltype(&cudnnSetTensorNdDescriptor) set_tensor = nullptr;
  decltype(&cudnnGetTensorNdDescriptor) get_tensor = nullptr;
  decltype(&cudnnCreateDropoutDescriptor) create_dropout = nullptr;
  decltype(&cudnnDestroyDropoutDescriptor) destroy_dropout = nullptr;
  decltype(&cudnnSetDropoutDescriptor) set_dropout = nullptr;
  decltype(&cudnnCreateRNNDescriptor) create_rnn = nullptr;
  decltype(&cudnnDestroyRNNDescriptor) destroy_rnn = nullptr;
  decltype(&cudnnSetRNNDescriptor_v8) set_rnn = nullptr;
  decltype(&cudnnBuildRNNDynamic) build_dynamic = nullptr;
  decltype(&cudnnGetRNNTempSpaceSizes) temp_sizes = nullptr;
  decltype(&cudnnGetRNNWeightSpaceSize) weight_size = nullptr;
  decltype(&cudnnGetRNNWeightParams) weight_params = nullptr;
  decltype(&cudnnCreateRNNDataDescriptor) create_data = nullptr;
  decltype(&cudnnDestroyRNNDataDescriptor) destroy_data = nullptr;
  decltype(&cudnnSetRNNDataDescriptor) set_data = nullptr;
  decltype(&cudnnRNNForward) forward = nullptr;
  decltype(&cudnnRNNBackwardData_v8) backward_data = nullptr;
  decltype(&cudnnRNNBackwardWeights_v8) backward_weights = nullptr;
};

/// Opened once.
const Cudnn& cudnn();

/// Throws Error(device, "bench.cudnn"), also for what cuDNN lacks.
void check(cudnnStatus_t status, const char* call);

}  // namespace everglow::bench
