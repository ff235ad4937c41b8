// The batches of an epoch, made ahead of the loop by a thread of its own, for devices that the loop does not wait for.
#pragma once

#include <everglow/gnmt/corpus.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace everglow::gnmt {

class BatchQueue {
 public:
  using Order = std::vector<std::vector<std::int64_t>>;
  /// From the batch `begin` of an order on. Examples and order must outlive the queue.
  BatchQueue(std::span<const Example> examples, const Order& order, std::int64_t begin)
      : thread_([this, examples, &order, begin](const std::stop_token& stop) { work(stop, examples, order, begin); }) {}

  /// The next batch; throws what making it threw. No more calls than there are batches.
  Batch next() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [this] { return !ready_.empty() || fault_ != nullptr; });
    if (ready_.empty()) std::rethrow_exception(fault_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return batch;
  }

 private:
  static constexpr std::size_t most = 16;

  void work(const std::stop_token& stop, std::span<const Example> examples, const Order& order, std::int64_t begin) {
    try {
      for (auto i = static_cast<std::size_t>(begin); i < order.size(); ++i) {
        Batch batch = make_batch(examples, order[i]);
        std::unique_lock guard(lock_);
        if (!changed_.wait(guard, stop, [this] { return ready_.size() < most; })) return;
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard guard(lock_);
      fault_ = std::current_exception();
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr fault_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace everglow::gnmt
