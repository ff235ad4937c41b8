// The row cpu.recurrent_stepwise: f32, f16 and bf16, every cell and option.
#include "core/recurrent.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/philox.hpp"
#include "core/recurrent_stack.hpp"
#include "cpu/isa/pointwise.hpp"
#include "cpu/recurrent_layout.hpp"
#include "cpu/rows.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>

namespace everglow::cpu {
namespace {

Verdict accepts(const RecurrentQuery& q) {
  Verdict verdict = accept_storage(q.description.dtype);
  if (verdict.accepted) verdict.reason = how_multiplied(q.isa, q.description.dtype);
  if (verdict.accepted && q.description.dtype == DType::bf16 && multiplies_bf16(q.isa))
    verdict.reason = "x, h and weights of bf16 multiplied as they are, in pairs; widened where they meet f32";
  return verdict;
}

Footprint footprint(const RecurrentQuery& q) {
  const RecurrentShape s = shape_of(q.description, q.sizes.steps, q.sizes.batch);
  Arena packed, reserve;
  take_weights(packed, s, q.isa);
  std::size_t workspace = recurrent_forward_bytes(q);
  if (q.description.training) {
    take_reserve(reserve, s);
    workspace = std::max(workspace, recurrent_backward_bytes(q));
  }
  return {workspace, reserve.bytes(), packed.bytes()};
}

void pack(const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed, const Stream&) {
  const RecurrentShape s = shape_of(q.description, 0, 0);
  Arena arena(packed);
  fill_weights(take_weights(arena, s, q.isa), s, weights, {.w_ih = true, .w_ih_packed = true, .forward = true, .backward = true},
               q);
}

void drop(const RecurrentQuery& q, const recurrent::Mask& mask, const ConstTensorView& from, const TensorView& to, const Stream&) {
  constexpr std::int64_t part = 1024;  // elements whose words stay in the first cache
  const PointwiseKernels& kernels = select(q.isa, portable::pointwise_kernels, avx2::pointwise_kernels, avx512::pointwise_kernels);
  // p < 1, so that the threshold is a word
  const auto threshold = static_cast<std::uint32_t>(dropout_threshold(mask.probability));
  const auto scale = static_cast<float>(1 / (1 - dropped("recurrent.dropout_scale", mask.probability)));
  const Storage storage(from.dtype, q.isa);
  const std::int64_t n = from.elements(), parts = (n + part - 1) / part;
  parallel_ranges(q.threads, parts, 4, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t words[4 * (part / 4 + philox_batch)];
    float values[part];
    for (std::int64_t i = begin * part; i < std::min(end * part, n); i += part) {
      const std::uint64_t element = mask.first + static_cast<std::uint64_t>(i);
      const std::int64_t count = std::min(part, n - i), skip = static_cast<std::int64_t>(element % 4);
      const std::int64_t counters = (skip + count + 3) / 4;
      kernels.philox(mask.seed, mask.offset + element / 4, (counters + philox_batch - 1) / philox_batch * philox_batch, words);
      const float* a = storage.floats(storage.at(from.data, i), values, count);
      void* target = storage.at(to.data, i);
      float* y = storage.is_f32() ? static_cast<float*>(target) : values;
      kernels.dropout({.a = a, .y = y, .n = count}, words + dropped("recurrent.dropout_offset", skip), threshold, scale);
      if (!storage.is_f32()) storage.narrow(values, target, count);
    }
  });
}

constexpr recurrent::LayerRow layer{
    .footprint = footprint, .forward = recurrent_forward, .backward = recurrent_backward, .pack = pack, .drop = drop};

}  // namespace

const RecurrentRow recurrent_stepwise = recurrent::stacked<layer>("cpu.recurrent_stepwise", accepts);

}  // namespace everglow::cpu
