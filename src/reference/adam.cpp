// Adam in plain loops, each element in double between the f32 states.
#include "core/loss_scaler.hpp"
#include "core/mutant.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <cmath>

namespace everglow::reference {
namespace {

double global_norm(const AdamStep& t, double loss_scale) {
  double sum = 0;
  for (const AdamTensor& a : t.tensors)
    for (std::int64_t i = 0; i < a.parameter.elements(); ++i) {
      const double gradient = read(a.gradient.data, a.gradient.dtype, i) / loss_scale;
      sum += gradient * gradient;
    }
  return std::sqrt(sum);
}

double loss_scale_of(const AdamStep& t) {
  if (t.scaler.given()) return read(t.scaler, 0);
  return t.scale.given() ? read(t.scale, 0) : 1;
}

/// The rate of this step. The scaler's state goes on.
double scaled_step(const AdamQuery& q, const AdamStep& t, bool overflow) {
  if (!t.scaler.given()) return read(t.rate, 0);
  auto* const state = static_cast<float*>(t.scaler.data);
  const std::int64_t entry = rate_entry(state[2], t.rate.elements());
  const LossScaler next = after_step({state[0], state[1], state[2]}, overflow, q.description.scale_interval);
  state[0] = next.scale, state[1] = next.good, state[2] = next.skipped;
  return read(t.rate, entry);
}

void step(const AdamQuery& q, const AdamStep& t, void*, const Stream&) {
  const AdamDescription& d = q.description;
  const double beta1 = d.beta1, beta2 = d.beta2, loss_scale = loss_scale_of(t);
  const double norm = global_norm(t, loss_scale);
  if (t.norm.given()) write(t.norm, norm, 0);
  const bool overflow = t.overflow.given() && !std::isfinite(norm);
  if (t.overflow.given()) write(t.overflow, overflow ? 1 : 0, 0);
  const double rate = scaled_step(q, t, overflow);
  if (overflow) return;

  auto& steps = *static_cast<std::int64_t*>(t.step.data);
  ++steps;
  const double clip = d.clip > 0 && norm > d.clip ? d.clip / norm : 1;
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(steps)),
               correction2 = 1 - std::pow(beta2, static_cast<double>(steps));
  for (const AdamTensor& a : t.tensors)
    for (std::int64_t i = 0; i < a.parameter.elements(); ++i) {
      const double gradient = clip * read(a.gradient.data, a.gradient.dtype, i) / loss_scale;
      const double m = beta1 * read(a.m.data, DType::f32, i) + (1 - beta1) * flipped("adam.reference_first_moment_sign", gradient);
      const double v = beta2 * read(a.v.data, DType::f32, i) + (1 - beta2) * gradient * gradient;
      const double before = read(a.parameter.data, DType::f32, i);
      const double direction =
          (m / correction1) /
              (std::sqrt(v / (mutant("adam.reference_second_moment_not_corrected") ? 1 : correction2)) + d.epsilon) +
          flipped("adam.reference_decay_sign", d.weight_decay * before);
      const double after = before - rate * direction;
      write(a.m.data, DType::f32, i, m);
      write(a.v.data, DType::f32, i, v);
      write(a.parameter.data, DType::f32, i, after);
      if (a.copy.given()) write(a.copy.data, a.copy.dtype, i, read(a.parameter.data, DType::f32, i));
    }
}

}  // namespace

const AdamRow adam{.name = "reference.adam",
                   .accepts = [](const AdamQuery&) { return accept(); },
                   .footprint = no_footprint<AdamQuery>,
                   .step = step};

}  // namespace everglow::reference
