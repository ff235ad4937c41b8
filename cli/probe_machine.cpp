// Reads working sets of growing size with one thread and with all, multiplies in registers, and hands a flag from core to core.
#include "cli/isa/probe_loops.hpp"
#include "cli/probe.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace everglow::cli {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_ns(Clock::time_point since) { return std::chrono::duration<double, std::nano>(Clock::now() - since).count(); }

const ProbeLoops& loops() {
  const std::string isa = DeviceDescription(Device::cpu()).isa;
  return isa == "portable" ? portable::probe_loops : isa == "avx2" ? avx2::probe_loops : avx512::probe_loops;
}

constexpr double slice_ns = 2e6;

/// What `work` does in a nanosecond, by one call after the other for a slice of time; work() returns how much it did.
template <class Work>
double rate_of(const Work& work) {
  work();
  double done = 0;
  const auto start = Clock::now();
  do done += work();
  while (elapsed_ns(start) < slice_ns);
  return done / elapsed_ns(start);
}

/// The same by threads that begin together, in sum. work(thread) as above.
template <class Work>
double rate_of_all(int threads, const Work& work) {
  std::atomic<int> ready{0};
  std::vector<double> rates(static_cast<std::size_t>(threads), 0.0);
  std::vector<std::thread> team;
  for (int thread = 0; thread < threads; ++thread)
    team.emplace_back([&, thread] {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      rates[static_cast<std::size_t>(thread)] = rate_of([&] { return work(thread); });
    });
  double sum = 0;
  for (std::thread& thread : team) thread.join();
  for (const double rate : rates) sum += rate;
  return sum;
}

std::atomic<int> found{0};  // what loops return, so that they are not left out

double read_some(const float* data, std::int64_t bytes, std::int64_t times) {
  const ProbeLoops& l = loops();
  const std::size_t floats = static_cast<std::size_t>(bytes) / sizeof(float) / l.unit * l.unit;
  found.fetch_or(l.read(data, floats, static_cast<std::size_t>(times)), std::memory_order_relaxed);
  return static_cast<double>(floats * sizeof(float)) * static_cast<double>(times);
}

double multiply_some() {
  constexpr std::size_t rounds = 10'000;
  found.fetch_or(static_cast<int>(loops().multiply(rounds)), std::memory_order_relaxed);
  return static_cast<double>(rounds * loops().flops);
}

/// A flag there and back, us: the least of many short series, since a thread may be put aside in any of them. Bounded in time, for
/// a machine that gives both threads one core; 0 where no series ended.
double hand_off_us() {
  constexpr int series = 10, rounds = 100;
  constexpr double most_ns = 2e7;
  std::atomic<int> flag{0};
  std::atomic<bool> ended{false};
  std::thread other([&] {
    for (int seen = 0; !ended.load(std::memory_order_relaxed);) {
      const int now = flag.load(std::memory_order_acquire);
      if (now == seen || now % 2 == 0) continue;
      seen = now + 1;
      flag.store(seen, std::memory_order_release);
    }
  });
  double least = 0;
  int sent = 0;
  const auto start = Clock::now();
  for (int i = 0; i < series && elapsed_ns(start) < most_ns; ++i) {
    const auto begin = Clock::now();
    int done = 0;
    for (; done < rounds; ++done) {
      flag.store(2 * ++sent - 1, std::memory_order_release);
      while (flag.load(std::memory_order_acquire) != 2 * sent && elapsed_ns(start) < most_ns) continue;
      if (flag.load(std::memory_order_acquire) != 2 * sent) break;
    }
    const double each = elapsed_ns(begin) / rounds / 1000;
    if (done == rounds && (least == 0 || each < least)) least = each;
  }
  ended = true;
  other.join();
  return least;
}

}  // namespace

MachineProbe::MachineProbe(const OperandMemory& memory, int threads) : memory_(memory), threads_(threads) {
  const DeviceFigures figures = DeviceDescription(Device::cpu()).figures;
  const std::int64_t each = memory.read_bytes() / threads;  // of a thread
  // Half of L1 and L2; a part of the last cache that all threads find room in beside L2; memory.
  const std::int64_t l3 =
      std::clamp(figures.l3.bytes / (2 * threads), 2 * figures.l2.bytes, std::max(each / 2, figures.l2.bytes * 2));
  levels_ = {{"L1", figures.l1.bytes / 2}, {"L2", figures.l2.bytes / 2}, {"L3", std::min(l3, each)}, {"memory", each}};
}

void MachineProbe::lap() {
  const auto* data = reinterpret_cast<const float*>(memory_.read());
  const std::int64_t each = memory_.read_bytes() / threads_ / 64 * 64;
  for (Level& level : levels_) {
    const std::int64_t bytes = std::min(level.bytes, each);
    // Memory is read in pieces, so that a slice ends in time; a small set as often as one look at the clock is nothing beside it.
    constexpr std::int64_t most = 4 << 20, least = 1 << 20;
    const std::int64_t piece = std::min(bytes, most), again = std::max<std::int64_t>(least / piece, 1);
    std::vector<std::int64_t> at(static_cast<std::size_t>(threads_), 0);
    const auto read = [&](int thread, std::int64_t own) {
      std::int64_t& place = at[static_cast<std::size_t>(thread)];
      const std::int64_t begin = place;
      place = place + 2 * piece > bytes ? 0 : place + piece;
      return read_some(data + (thread * own + begin) / 4, piece, again);
    };
    level.one_gbs = std::max(level.one_gbs, rate_of([&] { return read(0, each); }));
    level.all_gbs = std::max(level.all_gbs, rate_of_all(threads_, [&](int thread) { return read(thread, each); }));
  }
  one_tflops_ = std::max(one_tflops_, rate_of(multiply_some) / 1000);
  all_tflops_ = std::max(all_tflops_, rate_of_all(threads_, [](int) { return multiply_some(); }) / 1000);
  if (threads_ > 1) {
    const double us = hand_off_us();
    if (us > 0) hand_off_us_ = hand_off_us_ == 0 ? us : std::min(hand_off_us_, us);
  }
}

void MachineProbe::put(DeviceFigures& figures) const {
  figures.l1.gbs = levels_[0].one_gbs, figures.l2.gbs = levels_[1].one_gbs, figures.l3.gbs = levels_[2].one_gbs;
  figures.bandwidth_gbs = std::max(levels_[3].all_gbs, levels_[3].one_gbs);
  figures.cpu.core_bandwidth_gbs = levels_[3].one_gbs;
  figures.cpu.hand_off_us = hand_off_us_;
  // The arithmetic that no product can exceed.
  const double peak = std::max({all_tflops_, figures.f32_tflops});
  figures.achieved_math = std::clamp(figures.f32_tflops / peak, 0.05, 1.0);
  figures.f32_tflops = figures.tf32_tflops = peak;
  figures.f64_tflops = peak / 2;
  figures.f16_tflops = std::max(figures.f16_tflops, peak), figures.bf16_tflops = std::max(figures.bf16_tflops, peak);
}

}  // namespace everglow::cli
