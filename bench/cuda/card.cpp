// A card's stream, its events and its graphs.
#include "bench/cuda/card.hpp"

#include <cuda_runtime_api.h>

#include <vector>

namespace everglow::bench {
namespace {

void check(cudaError_t fault, const char* what) {
  if (fault != cudaSuccess) throw Error(ErrorCode::device, "bench", std::string(what) + ": " + cudaGetErrorString(fault));
}

/// "13.0" of 13000.
std::string version_text(int version) { return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10); }

class CudaCard : public Card {
 public:
  explicit CudaCard(Device device) : device_(device) {
    check(cudaSetDevice(device.index), "the card");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device.index), "the card");
    int driver_version = 0;
    check(cudaDriverGetVersion(&driver_version), "the driver");
    name = properties.name, driver = "CUDA " + version_text(driver_version), toolkit = version_text(CUDART_VERSION);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreate(&begin_), "an event"), check(cudaEventCreate(&end_), "an event");
  }
  ~CudaCard() override {
    cudaEventDestroy(begin_), cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  CudaCard(const CudaCard&) = delete;
  CudaCard& operator=(const CudaCard&) = delete;

  Stream stream() const override { return {device_, stream_}; }

  double microseconds(const std::function<void()>& run, int times) override {
    check(cudaEventRecord(begin_, stream_), "an event");
    for (int i = 0; i < times; ++i) run();
    check(cudaEventRecord(end_, stream_), "an event");
    check(cudaEventSynchronize(end_), "what was timed");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "the clock");
    return 1e3 * static_cast<double>(ms) / times;
  }

  std::function<void()> captured(const std::function<void()>& run) override {
    run();
    check(cudaStreamSynchronize(stream_), "what is captured");
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a capture");
    run();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "a capture");
    cudaGraphExec_t ready = nullptr;
    check(cudaGraphInstantiate(&ready, graph, 0), "a graph");
    check(cudaGraphDestroy(graph), "a graph");
    const std::shared_ptr<CUgraphExec_st> owner(ready, [](cudaGraphExec_t one) { cudaGraphExecDestroy(one); });
    return [owner, stream = stream_] { check(cudaGraphLaunch(owner.get(), stream), "a graph"); };
  }

 private:
  Device device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::shared_ptr<Card> open_card(Device device) { return std::make_shared<CudaCard>(device); }

}  // namespace everglow::bench
