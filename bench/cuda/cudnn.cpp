// Opens cuDNN.
#include "bench/cuda/cudnn.hpp"

#include <everglow/error.hpp>

namespace everglow::bench {
namespace {

Cudnn load() {
  Cudnn out;
  SharedLibrary& f = out.file;
  f.find(out.create, "cudnnCreate"), f.find(out.set_stream, "cudnnSetStream"), f.find(out.error_text, "cudnnGetErrorString");
  f.find(out.create_tensor, "cudnnCreateTensorDescriptor"), f.find(out.destroy_tensor, "cudnnDestroyTensorDescriptor");
  f.find(out.set_tensor, "cudnnSetTensorNdDescriptor"), f.find(out.get_tensor, "cudnnGetTensorNdDescriptor");
  f.find(out.create_dropout, "cudnnCreateDropoutDescriptor"), f.find(out.destroy_dropout, "cudnnDestroyDropoutDescriptor");
  f.find(out.set_dropout, "cudnnSetDropoutDescriptor");
  f.find(out.create_rnn, "cudnnCreateRNNDescriptor"), f.find(out.destroy_rnn, "cudnnDestroyRNNDescriptor");
  f.find(out.set_rnn, "cudnnSetRNNDescriptor_v8"), f.find(out.build_dynamic, "cudnnBuildRNNDynamic");
  f.find(out.temp_sizes, "cudnnGetRNNTempSpaceSizes"), f.find(out.weight_size, "cudnnGetRNNWeightSpaceSize");
  f.find(out.weight_params, "cudnnGetRNNWeightParams");
  f.find(out.create_data, "cudnnCreateRNNDataDescriptor"), f.find(out.destroy_data, "cudnnDestroyRNNDataDescriptor");
  f.find(out.set_data, "cudnnSetRNNDataDescriptor"), f.find(out.forward, "cudnnRNNForward");
  f.find(out.backward_data, "cudnnRNNBackwardData_v8"), f.find(out.backward_weights, "cudnnRNNBackwardWeights_v8");
  return out;
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn opened = load();
  return opened;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::device, "bench.cudnn", std::string(call) + ": " + cudnn().error_text(status));
}

}  // namespace everglow::bench
