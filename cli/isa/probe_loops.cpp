// Reads memory and multiplies in registers with the vectors of one instruction set.
#include "probe_loops.hpp"

#if defined(__AVX512F__)
#define EVERGLOW_PROBE_LANES 16
#elif defined(__AVX__)
#define EVERGLOW_PROBE_LANES 8
#else
#define EVERGLOW_PROBE_LANES 4
#endif

namespace everglow::cli::EVERGLOW_ISA_NAMESPACE {
namespace {

constexpr std::size_t lanes = EVERGLOW_PROBE_LANES;
using Floats = float __attribute__((vector_size(4 * EVERGLOW_PROBE_LANES)));
using Ints = int __attribute__((vector_size(4 * EVERGLOW_PROBE_LANES), aligned(4), may_alias));

constexpr std::size_t streams = 8;  // vectors in flight
constexpr std::size_t chains = 12;  // of multiply-adds: 4 clocks on two units are 8

int read(const float* data, std::size_t floats, std::size_t times) {
  Ints found[streams] = {};
  for (std::size_t time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < floats; i += streams * lanes)
#pragma GCC unroll 8
      for (std::size_t s = 0; s < streams; ++s) found[s] |= *reinterpret_cast<const Ints*>(data + i + s * lanes);
    __asm__ volatile("" ::: "memory");  // the next time reads again
  }
  int all = 0;
  for (const Ints& vector : found)
    for (std::size_t i = 0; i < lanes; ++i) all |= vector[i];
  return all;
}

float multiply(std::size_t rounds) {
  Floats sum[chains] = {};
  const Floats factor = Floats{} + 0.5F;
#pragma GCC unroll 12
  for (std::size_t c = 0; c < chains; ++c) sum[c] += static_cast<float>(c);
  for (std::size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (std::size_t c = 0; c < chains; ++c) sum[c] = sum[c] * factor + factor;
  float all = 0;
  for (const Floats& vector : sum)
    for (std::size_t i = 0; i < lanes; ++i) all += vector[i];
  return all;
}

}  // namespace

extern const ProbeLoops probe_loops;
const ProbeLoops probe_loops{streams * lanes, 2 * chains* lanes, read, multiply};

}  // namespace everglow::cli::EVERGLOW_ISA_NAMESPACE
