// Adam on f32 states in two passes over memory: the norm, in double over fixed blocks so that it does not depend on the threads,
// and one fused update. Blocks of all tensors are numbered through, so that many small tensors keep the threads as busy as a large
// one.
#include "cpu/isa/adam.hpp"
#include "core/loss_scaler.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/storage.hpp"
#include "cpu/rows.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::cpu {
namespace {

constexpr std::int64_t block = 4096;  // elements; the four arrays of a block fit the second-level cache many times
constexpr std::int64_t grain = 4;     // blocks below which another thread costs more than it saves

struct Scratch {
  std::int64_t* starts = nullptr;  // [tensors + 1], number of the first block of each tensor
  double* sums = nullptr;          // [blocks], sums of squares
};

Scratch scratch_of(const AdamQuery& q, Arena& arena) {
  Scratch s;
  s.starts = arena.take<std::int64_t>(q.sizes.tensors + 1);
  s.sums = arena.take<double>(q.sizes.parameters / block + q.sizes.tensors);
  return s;
}

/// Calls f(tensor, begin, end, number of the block) for each block of all tensors.
template <class F>
void for_blocks(const AdamQuery& q, const AdamStep& t, const Scratch& s, const F& f) {
  const std::int64_t* last = s.starts + t.tensors.size();
  parallel_ranges(q.threads, *last, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t* start = std::upper_bound<const std::int64_t*>(s.starts, last, begin) - 1;
    for (std::int64_t number = begin; number < end; ++number) {
      while (number >= start[1]) ++start;
      const AdamTensor& tensor = t.tensors[static_cast<std::size_t>(start - s.starts)];
      const std::int64_t first = (number - *start) * block;
      f(tensor, first, std::min(first + block, tensor.parameter.elements()), number);
    }
  });
}

/// The elements [begin, end) of the gradient as f32: themselves, or a copy in `room`, which holds a block.
const float* gradient_of(const AdamTensor& tensor, std::int64_t begin, std::int64_t end, Isa isa, float* room) {
  const Storage storage(tensor.gradient.dtype, isa);
  return storage.floats(storage.at(tensor.gradient.data, begin), room, end - begin);
}

float f32_of(const ConstTensorView& view) { return *static_cast<const float*>(view.data); }

AdamFactors factors_of(const AdamDescription& d, double rate, double gradient, std::int64_t steps) {
  const double beta1 = d.beta1, beta2 = d.beta2, t = static_cast<double>(steps);
  return {.gradient = static_cast<float>(gradient),
          .keep1 = d.beta1,
          .take1 = static_cast<float>(1 - beta1),
          .keep2 = d.beta2,
          .take2 = static_cast<float>(1 - beta2),
          .rate = static_cast<float>(rate / (1 - std::pow(beta1, t))),
          .root = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
          .epsilon = d.epsilon,
          .decay = static_cast<float>(rate * d.weight_decay)};
}

double loss_scale_of(const AdamStep& t) {
  if (t.scaler.given()) return f32_of(t.scaler);
  return t.scale.given() && !mutant("adam.loss_scale_kept") ? static_cast<double>(f32_of(t.scale)) : 1.0;
}

/// The rate of this step. The scaler's state goes on.
double scaled_step(const AdamQuery& q, const AdamStep& t, bool overflow) {
  if (!t.scaler.given()) return f32_of(t.rate);
  auto* const state = static_cast<float*>(t.scaler.data);
  const std::int64_t entry = rate_entry(state[2], t.rate.elements());
  const LossScaler next = after_step({state[0], state[1], state[2]}, overflow, q.description.scale_interval);
  state[0] = next.scale, state[1] = next.good, state[2] = next.skipped;
  return static_cast<const float*>(t.rate.data)[entry];
}

void step(const AdamQuery& q, const AdamStep& t, void* workspace, const Stream&) {
  const AdamDescription& d = q.description;
  Arena arena(workspace);
  const Scratch s = scratch_of(q, arena);
  s.starts[0] = 0;
  for (std::size_t i = 0; i < t.tensors.size(); ++i)
    s.starts[i + 1] = s.starts[i] + (t.tensors[i].parameter.elements() + block - 1) / block;
  const auto& kernels = select(q.isa, portable::adam_kernels, avx2::adam_kernels, avx512::adam_kernels);
  double gradient = 1 / loss_scale_of(t);
  bool overflow = false;

  if (d.clip > 0 || t.norm.given() || t.overflow.given()) {
    for_blocks(q, t, s, [&](const AdamTensor& tensor, std::int64_t begin, std::int64_t end, std::int64_t number) {
      float room[block];
      s.sums[number] = kernels.sum_of_squares(gradient_of(tensor, begin, end, q.isa, room), end - begin);
    });
    double sum = 0;
    for (std::int64_t i = 0; i < s.starts[t.tensors.size()]; ++i) sum += s.sums[i];
    const double norm = std::sqrt(sum) * std::fabs(gradient);
    overflow = t.overflow.given() && !std::isfinite(norm);
    if (t.norm.given()) *static_cast<float*>(t.norm.data) = static_cast<float>(norm);
    if (t.overflow.given()) *static_cast<std::int32_t*>(t.overflow.data) = overflow ? 1 : 0;
    if (d.clip > 0 && norm > d.clip && !mutant("adam.no_clipping")) gradient *= d.clip / norm;
  }

  const double rate = scaled_step(q, t, overflow);
  if (overflow) return;
  const std::int64_t steps = ++*static_cast<std::int64_t*>(t.step.data);
  const AdamFactors factors = factors_of(d, rate, gradient, steps);
  for_blocks(q, t, s, [&](const AdamTensor& tensor, std::int64_t begin, std::int64_t end, std::int64_t) {
    float room[block];
    float* const parameter = static_cast<float*>(tensor.parameter.data) + begin;
    kernels.update({parameter, gradient_of(tensor, begin, end, q.isa, room), static_cast<float*>(tensor.m.data) + begin,
                    static_cast<float*>(tensor.v.data) + begin, end - begin},
                   factors);
    if (!tensor.copy.given()) return;
    const Storage copy(tensor.copy.dtype, q.isa);
    copy.narrow(parameter, copy.at(tensor.copy.data, begin), end - begin);
  });
}

}  // namespace

const AdamRow adam{.name = "cpu.adam",
                   .accepts = [](const AdamQuery&) { return accept(); },
                   .footprint = arena_footprint<scratch_of, AdamQuery>,
                   .step = step};

}  // namespace everglow::cpu
