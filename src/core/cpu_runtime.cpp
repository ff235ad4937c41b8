// The CPU as a device: plain memory, and streams whose work is done when a call returns.
#include "core/dispatch.hpp"
#include "core/runtime.hpp"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

namespace everglow {
namespace {

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

void copy_strided(std::byte* to, const std::byte* from, const TensorView& t, const ConstTensorView& f, int dim) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  if (dim == t.rank) {
    std::memcpy(to, from, static_cast<std::size_t>(size));
    return;
  }
  if (dim == t.rank - 1 && t.strides[dim] == 1 && f.strides[dim] == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(size * t.shape[dim]));
    return;
  }
  for (std::int64_t i = 0; i < t.shape[dim]; ++i)
    copy_strided(to + i * t.strides[dim] * size, from + i * f.strides[dim] * size, t, f, dim + 1);
}

}  // namespace

const DeviceRuntime cpu_runtime{
    .status =
        [] {
          return BackendStatus{"cpu", true, text(name(chosen_isa()), ", ", default_threads(), " threads")};
        },
    .allocate = [](std::size_t bytes, int) -> void* {
      if (bytes > std::numeric_limits<std::size_t>::max() - 255) return nullptr;  // rounded up it would be 0
      return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    },
    .release = [](void* memory, int) { std::free(memory); },
    .copy =
        [](const TensorView& to, const ConstTensorView& from, const Stream&) {
          copy_strided(static_cast<std::byte*>(to.data), static_cast<const std::byte*>(from.data), to, from, 0);
        },
    .synchronize = [](const Stream&) {},
    .create_event = [](int) -> void* { return new char; },
    .destroy_event = [](void* event) { delete static_cast<char*>(event); },
    .record_event = [](void*, const Stream&) {},
    .wait_event = [](void*, const Stream*) {},
    .cores = usable_cores,
};

}  // namespace everglow
