// The rule of a dynamic loss scale (Micikevicius et al., arXiv 1710.03740, section 3.2), one for all rows of the optimiser.
#pragma once

#include <cstdint>

namespace everglow {

/// What AdamStep::scaler holds.
struct LossScaler {
  float scale, good, skipped;  // good: steps since the scale changed; skipped: in all
};

/// The entry of `rates` that a step takes after so many skipped ones; a count that is none takes the first.
constexpr std::int64_t rate_entry(float skipped, std::int64_t rates) {
  return skipped >= 0 && skipped <= 0x1p24F ? static_cast<std::int64_t>(skipped) % rates : 0;
}

/// Halved where a step is skipped, doubled after `interval` good steps, within 2^-24 ... 2^24: gradients that are all zeros would
/// let it grow for ever. Powers of two, so that a scaled gradient has the digits of the plain one.
constexpr LossScaler after_step(LossScaler s, bool overflow, std::int64_t interval) {
  constexpr float least = 0x1p-24F, most = 0x1p24F;
  if (overflow) {
    const float half = s.scale / 2;
    return {half > least ? half : least, 0, s.skipped + 1};
  }
  const float good = s.good + 1;
  if (good < static_cast<float>(interval)) return {s.scale, good, s.skipped};
  const float twice = s.scale * 2;
  return {twice < most ? twice : most, 0, s.skipped};
}

}  // namespace everglow
