// Softmax beside the reference.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <everglow/softmax.hpp>

#include <cmath>
#include <limits>

namespace everglow::proof {
namespace {

SoftmaxDescription description_of(const cases::Case& c) {
  return {.dtype = parse_dtype(c.text("dtype", "f32")),
          .log = c.flag("log"),
          .masked_row = c.text("masked_row", "nan") == "zero" ? MaskedRow::zero : MaskedRow::nan};
}

class SoftmaxProof final : public Proof {
 public:
  explicit SoftmaxProof(const cases::Case& c)
      : description_(description_of(c)), sizes_{c.integer("rows", 1), c.integer("columns", 1)} {
    x_ = HostTensor(description_.dtype, shape_, sizes_.columns + 3), dy_ = HostTensor(description_.dtype, shape_);
    x_.uniform(1, -4, 4), dy_.uniform(2, -1, 1);
    if (description_.masked_row == MaskedRow::zero && sizes_.rows > 0)
      for (std::int64_t i = 0; i < sizes_.columns; ++i) x_.put(i, -std::numeric_limits<double>::infinity());
    SoftmaxDescription exact = description_;
    exact.dtype = DType::f64;
    HostTensor x(DType::f64, shape_), y(DType::f64, shape_), dy(DType::f64, shape_), dx(DType::f64, shape_);
    x.set(x_.values()), dy.set(dy_.values());
    const SoftmaxPlan reference(exact, sizes_, Device::cpu(), {.force = "reference.softmax"});
    reference.forward({x, y}, {});
    reference.backward({y, dy, dx}, {});
    y64_ = y.values(), dx64_ = dx.values();
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  std::vector<Finding> run(const PlanOptions& options) const override {
    const SoftmaxPlan softmax = plan(options);
    const Scratch scratch(softmax.workspace_bytes());
    HostTensor y(description_.dtype, shape_, sizes_.columns + 1), dx(description_.dtype, shape_);
    forward_on(device.device, softmax, SoftmaxForward{x_, y}, scratch);
    const std::vector<double> y_values = y.values();
    backward_on(device.device, softmax, SoftmaxBackward{y, dy_, dx}, scratch);
    return {finding("forward", "y", y_values, y64_, forward_bound()),
            finding("backward", "dx", dx.values(), dx64_, backward_bound()),
            untouched("backward", y.guards_intact() && dx.guards_intact() && scratch.guards_intact())};
  }

 private:
  SoftmaxPlan plan(const PlanOptions& options) const { return {description_, sizes_, device, options}; }

  /// |y| <= 1 is a quotient of exponentials of sums of n terms: with roundoff u of f32 arithmetic and u_s of the storage type the
  /// error is at most (4 + n) u |y| of the sum and the exponential (whose argument is exact to u |x - max|, at most 8), plus one
  /// rounding. Below f16's smallest normal number that rounding is half of 2^-24 instead of a share of y.
  std::vector<double> forward_bound() const {
    const double u = unit_roundoff(DType::f32), storage = unit_roundoff(description_.dtype);
    const double least = description_.dtype == DType::f16 ? 0x1p-25 : 1e-37;
    std::vector<double> bound;
    for (const double value : y64_) {
      const double scale = description_.log ? 1 + std::fabs(value) : std::fabs(value);
      bound.push_back((std::isfinite(scale) ? scale : 0) * ((4 + static_cast<double>(sizes_.columns) + 8) * u + storage) + least);
    }
    return bound;
  }
  /// y carries the error above into y (dy - sum y dy); the sum has |terms| <= 1.
  std::vector<double> backward_bound() const {
    const double u = unit_roundoff(DType::f32), storage = unit_roundoff(description_.dtype);
    const auto columns = static_cast<double>(sizes_.columns);
    const double reach = description_.log ? 1 + columns : 2;
    return std::vector<double>(dx64_.size(), reach * (3 * (columns + 12) * u + 3 * storage));
  }

  SoftmaxDescription description_;
  SoftmaxSizes sizes_;
  std::vector<std::int64_t> shape_{sizes_.rows, sizes_.columns};
  HostTensor x_, dy_;
  std::vector<double> y64_, dx64_;
};

}  // namespace

std::unique_ptr<Proof> softmax_proof(const cases::Case& c) { return std::make_unique<SoftmaxProof>(c); }

}  // namespace everglow::proof
