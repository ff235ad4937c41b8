// Events around runs.
#include "bench/cuda/clock.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace everglow::bench {
namespace {

constexpr int samples = 15, warmup = 3;

void check(cudaError_t fault) {
  if (fault != cudaSuccess) throw std::runtime_error(cudaGetErrorString(fault));
}

}  // namespace

std::string card_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, card.index));
  return properties.name;
}

namespace {

class Timer {
 public:
  Timer() { check(cudaEventCreate(&begin_)), check(cudaEventCreate(&end_)); }
  ~Timer() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  double microseconds(const std::function<void(const Stream&)>& run, int times, cudaStream_t stream) {
    check(cudaEventRecord(begin_, stream));
    for (int i = 0; i < times; ++i) run({card, stream});
    check(cudaEventRecord(end_, stream));
    check(cudaEventSynchronize(end_));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_));
    return 1e3 * static_cast<double>(ms) / times;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

Record timed(const Subject& subject, const std::function<void(const Stream&)>& run) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Record out{
      .op = subject.op, .line = subject.line, .direction = subject.direction, .kernel = subject.kernel, .dtype = subject.dtype};
  out.device = card_name(), out.isa = "cuda", out.threads = 1;
  out.flops = subject.flops, out.bytes = subject.bytes;
  {
    Timer timer;
    for (int i = 0; i < warmup; ++i) run({card, stream});
    const double once = timer.microseconds(run, 1, stream);
    const int times = std::clamp(static_cast<int>(1000 / std::max(once, 1.0)), 1, 200);
    out.warmup = warmup + 1;
    for (int i = 0; i < samples; ++i) out.samples_us.push_back(timer.microseconds(run, times, stream));
  }
  check(cudaStreamDestroy(stream));
  out.median_us = quantile(out.samples_us, 0.5);
  out.p10 = quantile(out.samples_us, 0.1), out.p90 = quantile(out.samples_us, 0.9);
  return out;
}

Numbers::Numbers(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride) {
  const std::int64_t stride = std::max(row_stride, columns), elements = rows * stride;
  memory_ = Buffer(static_cast<std::size_t>(elements) * size_of(dtype), card);
  view_ = TensorView(memory_.data(), dtype, {rows, columns}, card);
  view_.strides[0] = stride;
  constexpr std::int64_t block = 1000003;
  std::vector<float> values(static_cast<std::size_t>(std::min(block, elements)));
  std::mt19937 random(1);
  std::normal_distribution<float> draw;
  for (float& value : values) value = draw(random);
  const auto count = static_cast<std::int64_t>(values.size());
  const Buffer wide(values.size() * sizeof(float), card);
  const TensorView there(wide.data(), DType::f32, {count}, card);
  copy(there, TensorView(values.data(), DType::f32, {count}));
  const TensorView all(memory_.data(), dtype, {elements}, card);
  const PointwisePlan convert({.operation = Pointwise::copy, .dtype = dtype}, {count}, card);
  for (std::int64_t i = 0; i < elements; i += block) {
    const std::int64_t n = std::min(block, elements - i);
    convert.run({.a = there.narrow(0, 0, n), .y = all.narrow(0, i, n)}, {}, {card, nullptr});
  }
  Stream{card, nullptr}.synchronize();
}

}  // namespace everglow::bench
