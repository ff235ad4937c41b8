// The classifier loss beside the reference.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <everglow/loss.hpp>

#include <algorithm>
#include <cmath>

namespace everglow::proof {
namespace {

/// What forward_backward gives.
struct Results {
  HostTensor loss, count{DType::f32, {1}}, dx, dweight, dbias;
};

class LossProof final : public Proof {
 public:
  explicit LossProof(const cases::Case& c)
      : d_{.inputs = c.integer("inputs", 1),
           .classes = c.integer("classes", 1),
           .dtype = parse_dtype(c.text("dtype", "f32")),
           .smoothing = static_cast<float>(c.number("smoothing", 0)),
           .ignore_index = c.flag("wide") ? -100 : 0,
           .training = true},
        rows_(c.integer("rows", 1)),
        gradient_(parse_dtype(c.text("gradient", name(d_.dtype)))),
        has_bias_(c.flag("bias")),
        strided_(c.flag("strided")),
        x_(d_.dtype, {rows_, d_.inputs}, gap(5)),
        weight_(d_.dtype, {d_.classes, d_.inputs}, gap(3)),
        bias_(d_.dtype, {d_.classes}),
        targets_(c.flag("wide") ? DType::i64 : DType::i32, {rows_}) {
    x_.uniform(1, -1, 1), weight_.uniform(2, -1, 1), bias_.uniform(3, -1, 1), scale_.fill(scale);
    draw_targets(c.integer("ignored", 0), c.integer("tail", 0));
    before_weight_ = HostTensor(gradient_, {d_.classes, d_.inputs});
    before_bias_ = HostTensor(gradient_, {d_.classes});
    before_weight_.uniform(7, -1, 1), before_bias_.uniform(8, -1, 1);
    largest_probability_ = counted_ > 0 ? find_largest_probability() : 0;
    exact_[0] = reference(false), exact_[1] = reference(true);
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  /// The mean's gradients written, and the sum's added to what was there.
  std::vector<Finding> run(const PlanOptions& options) const override {
    const LossPlan loss = plan(options);
    std::vector<Finding> out;
    for (const bool accumulate : {false, true}) {
      const Results actual = results(d_.dtype, gradient_, accumulate, strided_);
      const Scratch scratch(loss.workspace_bytes());
      Placement place(device.device);
      loss.forward_backward(placed(place, backward({x_, weight_, bias_}, actual, accumulate)), place(scratch), place.stream());
      place.finish();
      append(out, actual, exact_[accumulate ? 1 : 0], accumulate);
      bool intact = scratch.guards_intact();
      for (const auto* tensor : {&actual.loss, &actual.count, &actual.dx, &actual.dweight, &actual.dbias})
        intact = intact && tensor->guards_intact();
      out.push_back(untouched("backward", intact));
      Results alone = results(d_.dtype, gradient_, false, false);
      forward_on(device.device, loss, forward({x_, weight_, bias_}, alone), scratch);
      out.push_back(finding("forward", "loss", alone.loss.values(), actual.loss.values(), {0}));
      out.push_back(finding("forward", "count", alone.count.values(), actual.count.values(), {0}));
    }
    return out;
  }

 private:
  static constexpr double scale = 1.5;

  struct Inputs {
    HostTensor x, weight, bias;
  };

  std::int64_t gap(std::int64_t elements) const { return strided_ ? d_.inputs + elements : 0; }
  LossPlan plan(const PlanOptions& options) const { return {d_, {rows_}, device, options}; }
  bool ignored(std::int64_t row) const { return targets_.at(row) == static_cast<double>(d_.ignore_index); }

  /// Every so many rows and some at the end are ignored, and no others: class 0 is the ignored one of narrow targets.
  void draw_targets(std::int64_t every, std::int64_t tail) {
    targets_.integers(4, 0, static_cast<int>(std::max<std::int64_t>(d_.classes, 1) - 1));
    if (d_.classes == 1) d_.ignore_index = -1;
    for (std::int64_t n = 0; n < rows_; ++n)
      if (ignored(n)) targets_.put(n, 1);
    for (std::int64_t n = 0; n < rows_; ++n)
      if ((every > 0 && n % every == 0) || n >= rows_ - tail) targets_.put(n, static_cast<double>(d_.ignore_index));
    std::vector<double> uses(static_cast<std::size_t>(d_.classes), 0);
    for (std::int64_t n = 0; n < rows_; ++n)
      if (!ignored(n)) ++counted_, most_ = std::max(most_, ++uses[static_cast<std::size_t>(targets_.at(n))]);
  }

  LossForward forward(const Inputs& in, const Results& r) const {
    return {.x = in.x,
            .weight = in.weight,
            .bias = has_bias_ ? in.bias.const_view() : ConstTensorView(),
            .targets = targets_,
            .loss = r.loss,
            .count = r.count};
  }
  LossBackward backward(const Inputs& in, const Results& r, bool accumulate) const {
    return {.forward = forward(in, r),
            .scale = scale_,
            .divide_by_count = !accumulate,
            .dx = r.dx,
            .dweight = r.dweight,
            .dbias = r.dbias,
            .accumulate = accumulate};
  }

  Results results(DType dtype, DType gradient, bool accumulate, bool strided) const {
    Results r{.loss = HostTensor(dtype == DType::f64 ? DType::f64 : DType::f32, {1}),
              .dx = HostTensor(dtype, {rows_, d_.inputs}, strided ? d_.inputs + 1 : 0),
              .dweight = HostTensor(gradient, {d_.classes, d_.inputs}, strided ? d_.inputs + 2 : 0),
              .dbias = HostTensor(gradient, {d_.classes})};
    if (accumulate) r.dweight.set(before_weight_.values()), r.dbias.set(before_bias_.values());
    return r;
  }

  Inputs inputs_in_f64() const {
    Inputs in{HostTensor(DType::f64, {rows_, d_.inputs}), HostTensor(DType::f64, {d_.classes, d_.inputs}),
              HostTensor(DType::f64, {d_.classes})};
    in.x.set(x_.values()), in.weight.set(weight_.values()), in.bias.set(bias_.values());
    return in;
  }

  Results reference(bool accumulate) const {
    LossDescription exact = d_;
    exact.dtype = DType::f64;
    const LossPlan plan(exact, {rows_}, Device::cpu(), {.force = "reference.loss"});
    const Scratch scratch(plan.workspace_bytes());
    Results r = results(DType::f64, DType::f64, accumulate, false);
    plan.forward_backward(backward(inputs_in_f64(), r, accumulate), {scratch.data(), scratch.bytes()});
    return r;
  }

  /// The largest probability that any counted row gives any class.
  double find_largest_probability() const {
    double largest = 0;
    const auto x = x_.values(), weight = weight_.values(), bias = bias_.values();
    const auto inputs = static_cast<std::size_t>(d_.inputs);
    for (std::int64_t n = 0; n < rows_; ++n) {
      if (ignored(n)) continue;
      double sum = 0, top = 0;
      for (std::size_t c = 0; c < bias.size(); ++c) {
        double logit = has_bias_ ? bias[c] : 0;
        for (std::size_t i = 0; i < inputs; ++i) logit += x[static_cast<std::size_t>(n) * inputs + i] * weight[c * inputs + i];
        sum += std::exp(logit), top = std::max(top, std::exp(logit));
      }
      largest = std::max(largest, top / sum);
    }
    return largest;
  }

  /// Errors of an f32 row, with u its roundoff. |x|, |w|, |b| <= 1, so a logit, a sum of inputs + 1 terms of at most 1, is within
  /// e = (inputs + 1)² u of the exact one. With V classes the sum of exponentials is within (V + 8) u of itself (V additions;
  /// exponentials within 4 u, whose arguments are within 2 (inputs + 1) u) and so is each probability p: relative error
  /// r = 2 e + (V + 16 + 4 (inputs + 1)) u; V u is never reached but holds for any order. A gradient of a logit,
  /// p - (1 - s) [target] - s / V, is then within r p + 4 u (p + [target] + s / V), and within a roundoff of the storage type of
  /// itself where a product of 16-bit operands reads it. Where n_t rows have a class as their target, its dW and db add that over n
  /// rows, and n u times the magnitudes that are summed; dx adds it over the classes, whose p sum to 1, and V u times 2. What is
  /// stored is rounded once more.
  void append(std::vector<Finding>& out, const Results& actual, const Results& exact, bool accumulate) const {
    const double u = unit_roundoff(DType::f32), storage = unit_roundoff(d_.dtype), stored = unit_roundoff(gradient_);
    const double reach = static_cast<double>(d_.inputs) + 1, classes = static_cast<double>(d_.classes), n = counted_;
    const double factor = accumulate ? scale : scale / std::max(n, 1.0), before = accumulate ? 1 : 0;
    const double e = reach * reach * u, r = 2 * e + (classes + 16 + 4 * reach) * u;
    const double magnitude = n * (largest_probability_ + 1 / std::max(classes, 1.0)) + most_;
    const double largest_loss = std::log(std::max(classes, 1.0)) + 4 * reach;
    const double loss = n * (2 * e + (classes + 8 + 8 * largest_loss) * u) + u * n * largest_loss;
    const double weight =
        factor * magnitude * (r + 4 * u + n * u + storage + stored) + (stored + u) * before + n * u * before + 1e-30;
    std::vector<double> dx(static_cast<std::size_t>(rows_ * d_.inputs),
                           factor * (r + 12 * u + 2 * classes * u + 4 * storage) + 1e-30);
    for (std::int64_t row = 0; row < rows_; ++row)  // of ignored rows it is 0
      if (ignored(row)) std::fill_n(dx.begin() + row * d_.inputs, d_.inputs, 0.0);
    const auto each = [](const HostTensor& tensor, double value) {
      return std::vector<double>(static_cast<std::size_t>(tensor.view().elements()), value);
    };
    const std::string_view direction = accumulate ? "backward, accumulated" : "backward";
    out.push_back(finding(direction, "loss", actual.loss.values(), exact.loss.values(), {loss}));
    out.push_back(finding(direction, "count", actual.count.values(), {n}, {0}));
    out.push_back(finding(direction, "dx", actual.dx.values(), exact.dx.values(), dx));
    out.push_back(finding(direction, "dweight", actual.dweight.values(), exact.dweight.values(), each(actual.dweight, weight)));
    out.push_back(finding(direction, "dbias", actual.dbias.values(), exact.dbias.values(), each(actual.dbias, weight)));
  }

  LossDescription d_;
  std::int64_t rows_;
  DType gradient_;
  bool has_bias_, strided_;
  HostTensor x_, weight_, bias_, targets_, scale_{DType::f32, {1}}, before_weight_, before_bias_;
  double counted_ = 0, most_ = 0;  // rows that are not ignored, and how many of them have the same target
  double largest_probability_ = 0;
  Results exact_[2];  // of the mean's gradients, and of the sum's added to what was there
};

}  // namespace

std::unique_ptr<Proof> loss_proof(const cases::Case& c) { return std::make_unique<LossProof>(c); }

}  // namespace everglow::proof
