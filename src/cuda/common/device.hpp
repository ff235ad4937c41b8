// CUDA cards as this process finds them: whether they can be used and why not, faults as errors, and the current card for a scope.
#pragma once

#include "core/dispatch.hpp"

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace everglow::cuda {

inline constexpr int least_capability = 80;  ///< compute capability times ten

/// How many cards there are, and, where there is none, why. Asked once: a card does not appear while a program runs.
struct Cards {
  int count = 0;
  std::string reason{};
};
const Cards& cards();

/// Empty where the card can be used, else the reason, which names CUDA.
std::string why_unusable(int index);

/// The figures of a card: the table's where it knows the card's name, else estimated; sizes as the card says. Capability 0 where
/// it cannot be used.
DeviceFigures figures_of_card(int index);

/// The first sentence of every row: a card of capability 8.0 or newer, present or planned for by name.
Verdict accept_device(const DeviceDescription& device);

/// All that the rows ask which take every option: a storage type, and such a card.
template <class AnyQuery>
Verdict accept_storage_on_card(const AnyQuery& query) {
  const Verdict storage = accept_storage(query.description.dtype);
  return storage.accepted ? accept_device(query.device) : storage;
}

/// Throws Error(device), or Error(out_of_memory), with CUDA's name of the fault.
void check(cudaError_t fault, std::string_view where);

/// Throws what the last launch of this thread has left.
inline void check_launch(std::string_view where) { check(cudaGetLastError(), where); }

/// Makes a card the current one and the one before it current again at the end. Throws Error(unsupported) for a card that cannot be
/// used.
class CurrentCard {
 public:
  explicit CurrentCard(int index);
  ~CurrentCard();
  CurrentCard(const CurrentCard&) = delete;
  CurrentCard& operator=(const CurrentCard&) = delete;

 private:
  int before_ = 0, index_ = 0;
};

inline cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace everglow::cuda
