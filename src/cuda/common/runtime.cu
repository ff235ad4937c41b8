// CUDA as a device: memory, streams, events, and copies of any strides on a card, between cards, and between a card and the host.
#include "core/check.hpp"
#include "core/runtime.hpp"
#include "cuda/common/device.hpp"
#include "gemm/cublaslt.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace everglow {
namespace cuda {
namespace {

constexpr std::string_view where = "copy";
constexpr int threads = 256;

/// Elements of two views in the same order; dimension 0 is the outermost.
struct CopyParams {
  void* to;
  const void* from;
  int rank;
  std::int64_t elements;
  std::int64_t shape[max_rank], to_strides[max_rank], from_strides[max_rank];
};

template <class Bits>
__global__ void copy_kernel(const __grid_constant__ CopyParams p) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < p.elements; i += step) {
    std::int64_t rest = i, to = 0, from = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
      const std::int64_t at = rest % p.shape[d];
      rest /= p.shape[d];
      to += at * p.to_strides[d], from += at * p.from_strides[d];
    }
    static_cast<Bits*>(p.to)[to] = static_cast<const Bits*>(p.from)[from];
  }
}

/// Two views without the dimensions of size 1 and with those joined that are one in both.
CopyParams joined(const TensorView& to, const ConstTensorView& from) {
  CopyParams p{
      .to = to.data, .from = from.data, .rank = 0, .elements = to.elements(), .shape = {}, .to_strides = {}, .from_strides = {}};
  for (int d = 0; d < to.rank; ++d) {
    if (to.shape[d] == 1) continue;
    const int last = p.rank - 1;
    if (last >= 0 && p.to_strides[last] == to.shape[d] * to.strides[d] && p.from_strides[last] == to.shape[d] * from.strides[d]) {
      p.shape[last] *= to.shape[d], p.to_strides[last] = to.strides[d], p.from_strides[last] = from.strides[d];
      continue;
    }
    p.shape[p.rank] = to.shape[d], p.to_strides[p.rank] = to.strides[d], p.from_strides[p.rank] = from.strides[d];
    ++p.rank;
  }
  return p;
}

/// True where CUDA copied the joined views itself: one block of memory, or rows of it with gaps between them.
bool copy_rows(const CopyParams& p, std::int64_t size, cudaStream_t stream) {
  const int inner = p.rank - 1;
  if (p.rank > 2 || (p.rank > 0 && (p.to_strides[inner] != 1 || p.from_strides[inner] != 1))) return false;
  const auto width = static_cast<std::size_t>(size * (p.rank == 0 ? 1 : p.shape[inner]));
  if (p.rank < 2) {
    check(cudaMemcpyAsync(p.to, p.from, width, cudaMemcpyDefault, stream), where);
    return true;
  }
  const auto to_pitch = p.to_strides[0] * size, from_pitch = p.from_strides[0] * size;
  constexpr std::int64_t most_pitch = std::numeric_limits<std::int32_t>::max();  // that a card copies by
  if (std::min(to_pitch, from_pitch) < static_cast<std::int64_t>(width) || std::max(to_pitch, from_pitch) > most_pitch)
    return false;
  check(cudaMemcpy2DAsync(p.to, static_cast<std::size_t>(to_pitch), p.from, static_cast<std::size_t>(from_pitch), width,
                          static_cast<std::size_t>(p.shape[0]), cudaMemcpyDefault, stream),
        where);
  return true;
}

void launch_copy(const CopyParams& p, std::size_t size, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((p.elements + threads - 1) / threads, 1 << 16));
  if (size == 1) copy_kernel<std::uint8_t><<<blocks, threads, 0, stream>>>(p);
  if (size == 2) copy_kernel<std::uint16_t><<<blocks, threads, 0, stream>>>(p);
  if (size == 4) copy_kernel<std::uint32_t><<<blocks, threads, 0, stream>>>(p);
  if (size == 8) copy_kernel<std::uint64_t><<<blocks, threads, 0, stream>>>(p);
  check_launch(where);
}

ConstTensorView dense_like(const ConstTensorView& view, void* memory, Device device) {
  return {memory, view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), device};
}

void copy_any(const TensorView& to, const ConstTensorView& from, const Stream& stream);

/// Views of two devices that CUDA cannot copy as rows: gathered where they come from, moved as one block, scattered where they go.
/// The host waits, since the blocks between are freed at the end.
void copy_in_parts(const TensorView& to, const ConstTensorView& from, const Stream& stream) {
  const std::size_t bytes = static_cast<std::size_t>(to.elements()) * size_of(to.dtype);
  stream.synchronize();
  const Buffer near(bytes, from.device), far(bytes, to.device);
  ConstTensorView gathered = dense_like(from, near.data(), from.device), arrived = dense_like(to, far.data(), to.device);
  const auto writable = [](const ConstTensorView& view) {
    return TensorView(const_cast<void*>(view.data), view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)),
                      view.device);
  };
  const Stream source{from.device, nullptr}, target{to.device, nullptr};
  everglow::copy(writable(gathered), from, source);
  source.synchronize();
  copy_any(writable(arrived), gathered, from.device.kind == DeviceKind::cuda ? source : target);
  (from.device.kind == DeviceKind::cuda ? source : target).synchronize();
  everglow::copy(to, arrived, target);
  target.synchronize();
}

/// On a stream of a card.
void copy_any(const TensorView& to, const ConstTensorView& from, const Stream& stream) {
  const CurrentCard current(stream.device.index);
  const CopyParams p = joined(to, from);
  const std::size_t size = size_of(to.dtype);
  if (copy_rows(p, static_cast<std::int64_t>(size), stream_of(stream))) return;
  if (to.device == from.device)
    launch_copy(p, size, stream_of(stream));
  else
    copy_in_parts(to, from, stream);
}

void copy_views(const TensorView& to, const ConstTensorView& from, const Stream& stream) {
  if (stream.device.kind == DeviceKind::cuda) return copy_any(to, from, stream);
  // On the CPU's stream the work is done when the call returns.
  const Stream card{to.device.kind == DeviceKind::cuda ? to.device : from.device, nullptr};
  copy_any(to, from, card);
  card.synchronize();
}

BackendStatus find_status() {
  const Cards& all = cards();
  if (all.count == 0) return {"cuda", false, all.reason};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device");
  return {"cuda", true,
          text("toolkit ", CUDART_VERSION / 1000, '.', CUDART_VERSION % 1000 / 10, ", ", all.count,
               all.count == 1 ? " card: " : " cards, the first: ", properties.name, " of compute capability ", properties.major,
               '.', properties.minor)};
}

/// Asked for by every copy and event, found once.
BackendStatus status() {
  static const BackendStatus found = find_status();
  return found;
}

/// What `ask` gives on a card; null where it has no memory left.
template <class Ask>
void* allocated(int index, const Ask& ask) {
  const CurrentCard current(index);
  void* memory = nullptr;
  const cudaError_t fault = ask(&memory);
  if (fault == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(fault, "buffer");
  return memory;
}
void* allocate(std::size_t bytes, int index) {
  return allocated(index, [bytes](void** memory) { return cudaMalloc(memory, bytes); });
}
void* allocate_on_host(std::size_t bytes, int index) {
  return allocated(index, [bytes](void** memory) { return cudaMallocHost(memory, bytes); });
}

void* create_stream(int index) {
  const CurrentCard current(index);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "stream");
  return stream;
}

void begin_capture(const Stream& stream) {
  const CurrentCard current(stream.device.index);
  // What other threads do meanwhile is no part of the graph and must not spoil it.
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "graph.capture");
}

void* end_capture(const Stream& stream, bool keep) {
  const CurrentCard current(stream.device.index);
  cudaGraph_t graph = nullptr;
  const cudaError_t fault = cudaStreamEndCapture(stream_of(stream), &graph);
  cudaGraphExec_t ready = nullptr;
  const bool whole = fault == cudaSuccess && keep;
  const cudaError_t made = whole ? cudaGraphInstantiate(&ready, graph, 0) : cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!keep) {
    cudaGetLastError();
    return nullptr;
  }
  check(fault, "graph.capture");
  check(made, "graph.capture");
  return ready;
}

void launch_graph(void* graph, const Stream& stream) {
  const CurrentCard current(stream.device.index);
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "graph.launch");
}

void* create_event(int index) {
  const CurrentCard current(index);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  return event;
}

void wait_event(void* event, const Stream* stream) {
  const auto point = static_cast<cudaEvent_t>(event);
  if (stream == nullptr || stream->device.kind == DeviceKind::cpu) return check(cudaEventSynchronize(point), "event.wait");
  const CurrentCard current(stream->device.index);
  check(cudaStreamWaitEvent(stream_of(*stream), point, 0), "event.wait");
}

void record_event(void* event, const Stream& stream) {
  const CurrentCard current(stream.device.index);
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "event.record");
}

void synchronize(const Stream& stream) {
  const CurrentCard current(stream.device.index);
  check(cudaStreamSynchronize(stream_of(stream)), "stream.synchronize");
}

}  // namespace
}  // namespace cuda

const DeviceRuntime cuda_runtime{
    .status = cuda::status,
    .allocate = cuda::allocate,
    .release = [](void* memory, int) { cudaFree(memory); },
    .copy = cuda::copy_views,
    .synchronize = cuda::synchronize,
    .create_event = cuda::create_event,
    .destroy_event = [](void* event) { cudaEventDestroy(static_cast<cudaEvent_t>(event)); },
    .record_event = cuda::record_event,
    .wait_event = cuda::wait_event,
    .allocate_on_host = cuda::allocate_on_host,
    .release_on_host = [](void* memory, int) { cudaFreeHost(memory); },
    .create_stream = cuda::create_stream,
    .destroy_stream = [](void* stream) { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); },
    .begin_capture = cuda::begin_capture,
    .end_capture = cuda::end_capture,
    .launch_graph = cuda::launch_graph,
    .destroy_graph = [](void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); },
    .figures = cuda::figures_of_card,
    .libraries = [] { return std::vector<BackendStatus>{cublaslt::status()}; },
};

}  // namespace everglow
