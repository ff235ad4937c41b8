// The linear layer beside the reference.
#include "cases/proof/linear.hpp"

#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <cmath>

namespace everglow::proof {
namespace {

/// A sum of k products in f32 arithmetic: (k + 1) u Σ|terms| in any order (Higham, Accuracy and Stability, section 3.1).
double sum_error(std::int64_t k, double u) { return static_cast<double>(k + 1) * u; }

/// The error of storing a value: s |value|, and for f16 at least half of its smallest step, 2^-24.
double stored(DType dtype, double value) {
  return unit_roundoff(dtype) * std::max(std::fabs(value), dtype == DType::f16 ? 0x1p-14 : 0.0);
}

/// What sums of k products of bf16 may lose where subnormal numbers count as zero: less than 2^-126 for each of both operands,
/// times the other, which is at most 2 (x; weights, dy and slopes less), and for each sum, bias and what is added to included.
double flushed(DType dtype, std::int64_t k) {
  return dtype == DType::bf16 ? static_cast<double>(k + 2) * (2 + 2 + 1) * 0x1p-126 : 0;
}

TensorView bytes_of(const Scratch& memory) { return {memory.data(), DType::u8, {static_cast<std::int64_t>(memory.bytes())}}; }

bool narrow(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::fabs(value);
  return values;
}

/// Sums of |terms| of the products: what the reference gives for absolute values.
struct Magnitudes {
  std::vector<double> forward, dx, dweight, dbias;
};

/// Errors, with u the unit roundoff of f32 (f64 for f64) and s that of the storage type:
/// - Products of bf16 are exact in f32, so that sums of pairs, in whichever order an instruction takes them, have the bound of any
///   sum, and `flushed`.
/// - The activations are Lipschitz with constant 1.13 and are computed within 16 u of (|z| + |y|) (argument, exponential, division
///   and the two products, each a few u): error of y <= 1.13 · error of z + 16 u (|z| + |y|) + s |y|. A row may compute y from z as
///   it is stored.
/// - Backward is compared on the row's own stored z, so its bound has no error of the forward product: slopes of at most 1.13 are
///   computed within 24 u · 1.13. dy · slope may be rounded to the storage type before it is multiplied.
class LinearProof final : public Proof {
 public:
  explicit LinearProof(const cases::Case& c)
      : problem_(linear_problem_of(c)), given_(problem_, problem_.description.dtype, 0), exact_(problem_, DType::f64, 0) {
    given_.x.uniform(1, -2, 2), given_.weight.uniform(2, -1, 1), given_.bias.uniform(3, -1, 1), given_.dy.uniform(4, -1, 1);
    given_.dweight.uniform(5, -4, 4), given_.dbias.uniform(6, -4, 4);
    exact_.take_inputs(given_);
    const LinearPlan reference = plan_of(problem_, DType::f64, {.force = "reference.linear"});
    const Scratch scratch(reference.workspace_bytes());
    LinearForward forward = exact_.forward(problem_);
    forward.preactivation = exact_.preactivation;
    reference.forward(forward, {scratch.data(), scratch.bytes()});
    find_magnitudes();
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  /// With plain weights and gradients of the storage type, then with packed weights, where there are any, and gradients in f32 that
  /// add to what is there.
  std::vector<Finding> run(const PlanOptions& options) const override {
    std::vector<Finding> out;
    for (const bool second : {false, true}) {
      const DType storage = problem_.description.dtype;
      const DType gradients = second && narrow(storage) ? DType::f32 : storage;
      LinearTensors t(problem_, storage, second ? 5 : 3, gradients);
      t.take_inputs(given_);
      if (second) t.dweight.set(given_.dweight.values()), t.dbias.set(given_.dbias.values());
      const LinearPlan linear = plan(options);
      const Scratch scratch(linear.workspace_bytes()), bytes(linear.packed_bytes());
      PackedWeights packed;
      LinearForward forward = t.forward(problem_);
      LinearBackward backward = t.backward(second);
      if (second && bytes.bytes() > 0) {
        Placement place(device.device);
        packed.bytes = bytes_of(bytes);
        PackedWeights there{.bytes = place(packed.bytes)};
        linear.pack(place(t.weight.const_view()), there, place.stream());
        place.finish();
        packed.key = there.key;
        forward.packed = backward.packed = &packed;
        forward.weight = backward.weight = {};
      }
      forward_on(device.device, linear, forward, scratch);
      compare_forward(t, out);
      if (problem_.description.training) {
        backward_on(device.device, linear, backward, scratch);
        compare_backward(t, second, out);
      }
      out.push_back(untouched("backward", t.guards_intact() && scratch.guards_intact() && bytes.guards_intact()));
    }
    return out;
  }

 private:
  LinearPlan plan(const PlanOptions& options) const { return plan_of(problem_, problem_.description.dtype, options, device); }
  double roundoff() const { return unit_roundoff(problem_.description.dtype == DType::f64 ? DType::f64 : DType::f32); }

  /// The magnitudes of dy · slope: 1.13 |dy|, and in f16 at least where its spacing stops to shrink.
  void find_magnitudes() {
    LinearProblem p = problem_;
    p.description.activation = Activation::none;
    p.description.training = true;
    LinearTensors t(p, DType::f64, 0);
    t.x.set(absolute(given_.x.values())), t.weight.set(absolute(given_.weight.values()));
    t.bias.set(absolute(given_.bias.values()));
    std::vector<double> dz = absolute(given_.dy.values());
    for (double& value : dz) value = std::max(1.13 * value, p.description.dtype == DType::f16 ? 0x1p-14 : 0.0);
    t.dy.set(dz);
    const LinearPlan reference = plan_of(p, DType::f64, {.force = "reference.linear"});
    const Scratch scratch(reference.workspace_bytes());
    reference.forward(t.forward(p), {scratch.data(), scratch.bytes()});
    reference.backward(t.backward(), {scratch.data(), scratch.bytes()});
    magnitudes_ = {t.y.values(), t.dx.values(), t.dweight.values(), t.dbias.values()};
  }

  void compare_forward(const LinearTensors& t, std::vector<Finding>& out) const {
    const auto& d = problem_.description;
    const std::vector<double> z = exact_.preactivation.values(), y = exact_.y.values();
    std::vector<double> z_bound, y_bound;
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double error =
          sum_error(d.inputs + 1, roundoff()) * magnitudes_.forward[i] + flushed(d.dtype, d.inputs) + stored(d.dtype, z[i]);
      z_bound.push_back(error);
      y_bound.push_back(1.13 * error + 16 * roundoff() * (std::fabs(z[i]) + std::fabs(y[i])) + stored(d.dtype, y[i]));
    }
    if (d.training) out.push_back(finding("forward", "preactivation", t.preactivation.values(), z, z_bound));
    out.push_back(finding("forward", "y", t.y.values(), y, y_bound));
  }

  void compare_backward(const LinearTensors& t, bool accumulate, std::vector<Finding>& out) const {
    const auto& d = problem_.description;
    LinearTensors exact(problem_, DType::f64, 0);
    exact.take_inputs(given_);
    exact.preactivation.set(t.preactivation.values());
    exact.dweight.set(given_.dweight.values()), exact.dbias.set(given_.dbias.values());
    const LinearPlan reference = plan_of(problem_, DType::f64, {.force = "reference.linear"});
    const Scratch scratch(reference.workspace_bytes());
    reference.backward(exact.backward(accumulate), {scratch.data(), scratch.bytes()});
    const double slope = 24 * roundoff() + (narrow(d.dtype) && d.activation != Activation::none ? unit_roundoff(d.dtype) : 0);
    const auto compare_one = [&](std::string_view name, const HostTensor& actual, const HostTensor& expected,
                                 const std::vector<double>& sums, std::int64_t k) {
      std::vector<double> bound;
      const std::vector<double> values = expected.values();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double before = accumulate && name != "dx" ? 4 : 0;  // one more term of at most this size
        bound.push_back((sum_error(k + 1, roundoff()) + slope) * (sums[i] + before) + flushed(d.dtype, k) +
                        stored(actual.view().dtype, values[i]));
      }
      out.push_back(finding("backward", name, actual.values(), values, bound));
    };
    compare_one("dx", t.dx, exact.dx, magnitudes_.dx, d.outputs);
    compare_one("dweight", t.dweight, exact.dweight, magnitudes_.dweight, problem_.sizes.batch);
    compare_one("dbias", t.dbias, exact.dbias, magnitudes_.dbias, problem_.sizes.batch);
  }

  LinearProblem problem_;
  LinearTensors given_, exact_;  // inputs in the storage type; their copies and the reference's results in f64
  Magnitudes magnitudes_;
};

}  // namespace

std::unique_ptr<Proof> linear_proof(const cases::Case& c) { return std::make_unique<LinearProof>(c); }

}  // namespace everglow::proof
