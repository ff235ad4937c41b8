// A card as benchmarks see it: a stream to work on, a clock of events around runs, and graphs. No CUDA header is needed to use it.
#pragma once

#include <everglow/runtime.hpp>

#include <functional>
#include <memory>
#include <string>

namespace everglow::bench {

class Card {
 public:
  virtual ~Card() = default;
  virtual Stream stream() const = 0;
  /// The mean of so many runs, microseconds between two events. `run` starts work on the stream.
  virtual double microseconds(const std::function<void()>& run, int times) = 0;
  /// What `run` starts on the stream as a graph: a call launches it. Runs once plainly first.
  virtual std::function<void()> captured(const std::function<void()>& run) = 0;

  std::string name{}, driver{}, toolkit{};  // as the driver names the card; versions of the driver and of nvcc
};

/// Throws Error(unsupported), or Error(device) where there is no such card, that says what is missing.
std::shared_ptr<Card> open_card(Device device);

}  // namespace everglow::bench
