// Adam beside the method as the paper writes it, all in double: the states of the reference row are f32, as those of every row.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <everglow/optimizer.hpp>

#include <algorithm>
#include <cmath>

namespace everglow::proof {
namespace {

/// The states in double, every tensor after the other.
struct Plain {
  std::vector<double> parameter, m, v;
  double norm = 0;

  void step(const AdamDescription& d, const std::vector<double>& gradient, double rate, int steps) {
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    norm = std::sqrt(squares);
    const double clip = d.clip > 0 && norm > d.clip ? d.clip / norm : 1;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i] * clip;
      m[i] = d.beta1 * m[i] + (1 - static_cast<double>(d.beta1)) * g;
      v[i] = d.beta2 * v[i] + (1 - static_cast<double>(d.beta2)) * g * g;
      const double m_hat = m[i] / (1 - std::pow(d.beta1, steps)), v_hat = v[i] / (1 - std::pow(d.beta2, steps));
      parameter[i] -= rate * (d.weight_decay * parameter[i] + m_hat / (std::sqrt(v_hat) + d.epsilon));
    }
  }
};

/// The states as a row keeps them.
struct States {
  std::vector<HostTensor> parameter, m, v, copy, gradient;
  HostTensor step{DType::i64, {1}}, rate{DType::f32, {1}}, scale{DType::f32, {1}}, norm{DType::f32, {1}}, overflow{DType::i32, {1}};

  std::vector<HostTensor*> all() {
    std::vector<HostTensor*> out{&step, &rate, &scale, &norm, &overflow};
    for (auto* list : {&parameter, &m, &v, &copy, &gradient})
      for (HostTensor& tensor : *list) out.push_back(&tensor);
    return out;
  }
};

std::vector<double> values_of(const std::vector<HostTensor>& tensors) {
  std::vector<double> out;
  for (const HostTensor& tensor : tensors)
    for (const double value : tensor.values()) out.push_back(value);
  return out;
}

class AdamProof final : public Proof {
 public:
  explicit AdamProof(const cases::Case& c)
      : d_{.beta1 = static_cast<float>(c.number("beta1", 0.9F)),
           .beta2 = static_cast<float>(c.number("beta2", 0.999F)),
           .epsilon = static_cast<float>(c.number("epsilon", 1e-8F)),
           .weight_decay = static_cast<float>(c.number("decay", 0)),
           .clip = static_cast<float>(c.number("clip", 0))},
        sizes_{c.integer("parameters", 1), c.integer("tensors", 1)},
        steps_(static_cast<int>(c.integer("steps", 3))),
        scale_(c.number("scale", 1)),
        gradient_(parse_dtype(c.text("gradient", "f32"))) {
    if (c.has("copy")) copies_ = true, copy_ = parse_dtype(c.text("copy", "bf16"));
    for (std::int64_t i = 0; i < sizes_.tensors; ++i)
      shapes_.push_back(sizes_.parameters * (i + 1) / sizes_.tensors - sizes_.parameters * i / sizes_.tensors);
    States start = states();
    const std::vector<double> none(static_cast<std::size_t>(sizes_.parameters), 0);
    plain_ = {.parameter = values_of(start.parameter), .m = none, .v = none};
    for (int t = 1; t <= steps_; ++t) {
      draw_gradients(start, t);
      std::vector<double> gradient = values_of(start.gradient);
      for (double& g : gradient) g /= scale_;
      plain_.step(d_, gradient, rate, t);
      norms_.push_back(plain_.norm);
    }
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  std::vector<Finding> run(const PlanOptions& options) const override {
    const AdamPlan adam = plan(options);
    const Scratch scratch(adam.workspace_bytes());
    States s = states();
    std::vector<double> norms, norm_bounds;
    for (int t = 1; t <= steps_; ++t) {
      draw_gradients(s, t);
      std::vector<AdamTensor> tensors;
      for (std::size_t i = 0; i < shapes_.size(); ++i) {
        tensors.push_back({.parameter = s.parameter[i], .gradient = s.gradient[i], .m = s.m[i], .v = s.v[i], .copy = {}});
        if (copies_) tensors.back().copy = s.copy[i];
      }
      Placement place(device.device);
      const AdamStep step{
          .tensors = tensors, .step = s.step, .rate = s.rate, .scale = s.scale, .norm = s.norm, .overflow = s.overflow};
      adam.step(placed(place, step), place(scratch), place.stream());
      place.finish();
      norms.push_back(s.norm.at(0));
      norm_bounds.push_back(2 * unit_roundoff(DType::f32) * norms_[static_cast<std::size_t>(t) - 1]);
    }
    std::vector<Finding> out{finding("step", "norm", norms, norms_, norm_bounds)};
    out.push_back(finding("step", "step", s.step.values(), {static_cast<double>(steps_)}, {0}));
    out.push_back(finding("step", "overflow", s.overflow.values(), {0}, {0}));
    append_states(out, s);
    bool intact = scratch.guards_intact();
    for (const HostTensor* tensor : s.all()) intact = intact && tensor->guards_intact();
    out.push_back(untouched("step", intact));
    return out;
  }

 private:
  static constexpr float rate = 0.01F;

  AdamPlan plan(const PlanOptions& options) const { return {d_, sizes_, device, options}; }

  States states() const {
    States s;
    s.step.fill(0), s.rate.fill(rate), s.scale.fill(scale_);
    for (const std::int64_t elements : shapes_) {
      for (auto* list : {&s.parameter, &s.m, &s.v}) list->emplace_back(DType::f32, std::vector{elements});
      s.gradient.emplace_back(gradient_, std::vector{elements});
      if (copies_) s.copy.emplace_back(copy_, std::vector{elements});
      s.parameter.back().uniform(s.parameter.size(), -1, 1);
      s.m.back().fill(0), s.v.back().fill(0);
    }
    return s;
  }
  void draw_gradients(States& s, int t) const {
    for (std::size_t i = 0; i < s.gradient.size(); ++i)
      s.gradient[i].uniform(1000 * static_cast<std::uint64_t>(t) + i, -scale_, scale_);
  }

  /// With u the roundoff of f32: each step rounds m, v and the parameter once, from factors and products with a few roundings each.
  /// After t steps m is within 6 t u max|m|, where |g| <= 1, and v within 8 t u. The direction m / sqrt(v), corrected, is at most
  /// largest = max(1, (1 - b1) / sqrt((1 - b2) (1 - b1² / b2))) in magnitude (Cauchy's inequality on the two sums) and within 40 t
  /// u of itself; the parameter adds those times the rate over t steps, and t u |p| twice, for its own rounding and the decay's.
  void append_states(std::vector<Finding>& out, const States& s) const {
    const double u = unit_roundoff(DType::f32), t = steps_, b1 = d_.beta1, b2 = d_.beta2;
    const double largest = std::max(1.0, (1 - b1) / std::sqrt((1 - b2) * (1 - b1 * b1 / b2)));
    const double parameter = t * t * 40 * largest * u * rate + 2 * t * u;
    const auto each = [&](double bound) { return std::vector<double>(plain_.m.size(), bound); };
    const std::vector<double> parameters = values_of(s.parameter);
    out.push_back(finding("step", "parameter", parameters, plain_.parameter, each(parameter)));
    out.push_back(finding("step", "m", values_of(s.m), plain_.m, each(6 * t * u)));
    out.push_back(finding("step", "v", values_of(s.v), plain_.v, each(8 * t * u)));
    if (!copies_) return;
    HostTensor rounded(copy_, {sizes_.parameters});  // exactly the parameter that the row wrote, rounded once
    rounded.set(parameters);
    out.push_back(finding("step", "copy", values_of(s.copy), rounded.values(), each(0)));
  }

  AdamDescription d_;
  AdamSizes sizes_;
  int steps_;
  double scale_;  // the loss scale, and the largest gradient
  DType gradient_, copy_ = DType::bf16;
  bool copies_ = false;
  std::vector<std::int64_t> shapes_;
  Plain plain_;
  std::vector<double> norms_;  // of each step
};

}  // namespace

std::unique_ptr<Proof> adam_proof(const cases::Case& c) { return std::make_unique<AdamProof>(c); }

}  // namespace everglow::proof
