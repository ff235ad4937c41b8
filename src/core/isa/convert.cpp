// The conversions of 16-bit storage, for one instruction set.
#include "core/isa/convert.hpp"

#include "core/simd.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

template <class Short>
void widen(const void* from, float* to, std::int64_t n) {
  const auto* source = static_cast<const Short*>(from);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(to + i, load(source + i));
  if (i < n) store_part(to + i, load_part(source + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

template <class Short>
void narrow(const float* from, void* to, std::int64_t n) {
  auto* target = static_cast<Short*>(to);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(target + i, load(from + i));
  if (i < n) store_part(target + i, load_part(from + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

}  // namespace

const ConvertKernels half_kernels{.widen = widen<Half>, .narrow = narrow<Half>};
const ConvertKernels bfloat16_kernels{.widen = widen<BFloat16>, .narrow = narrow<BFloat16>};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
