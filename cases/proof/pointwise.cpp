// Elementwise operations beside the reference.
#include "cases/proof/names.hpp"
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <cmath>

namespace everglow::proof {
namespace {

/// Memory of one operand and the [rows, columns] view of it that a layout asks for.
struct Operand {
  HostTensor memory;
  TensorView view;
};

Operand make_operand(DType dtype, std::int64_t rows, std::int64_t columns, std::string_view layout) {
  Operand o;
  if (layout == "transposed") {
    o.memory = HostTensor(dtype, {columns, rows});
    o.view = o.memory.view().transposed(0, 1);
  } else if (layout == "broadcast") {
    o.memory = HostTensor(dtype, {1, columns});
    o.view = o.memory.view();
    o.view.shape[0] = rows, o.view.strides[0] = 0;
  } else {
    o.memory = HostTensor(dtype, {rows, columns}, layout == "rows" ? columns + 5 : 0);
    o.view = o.memory.view();
  }
  return o;
}

class PointwiseProof final : public Proof {
 public:
  explicit PointwiseProof(const cases::Case& c)
      : d_{.operation = parse_pointwise(c.text("operation", "copy")),
           .dtype = parse_dtype(c.text("dtype", "f32")),
           .activation = parse_activation(c.text("activation", "none")),
           .factor = static_cast<float>(c.number("factor", 1)),
           .dropout = static_cast<float>(c.number("dropout", 0))},
        rows_(c.integer("rows", 1)),
        columns_(c.integer("columns", 1)),
        layout_(c.text("layout", "dense")),
        has_a_(d_.operation != Pointwise::fill),
        has_b_(d_.operation == Pointwise::add || d_.operation == Pointwise::multiply || d_.operation == Pointwise::dropout ||
               d_.operation == Pointwise::activation_gradient) {
    const DType source = d_.operation == Pointwise::copy ? parse_dtype(c.text("source", name(d_.dtype))) : d_.dtype;
    a_ = make_operand(source, rows_, columns_, layout_), b_ = make_operand(d_.dtype, rows_, columns_, "dense");
    a_.memory.uniform(1, -6, 6), b_.memory.uniform(2, -2, 2);
    PointwiseDescription exact = d_;
    exact.dtype = DType::f64;
    HostTensor a(DType::f64, {rows_, columns_}), b(DType::f64, {rows_, columns_}), y(DType::f64, {rows_, columns_});
    a.set(gathered(a_.view)), b.set(gathered(b_.view));
    PointwisePlan(exact, {rows_ * columns_}, Device::cpu(), {.force = "reference.pointwise"}).run(run_of(a, b, y));
    exact_ = y.values();
    bound_ = bound(a.values(), b.values());
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  std::vector<Finding> run(const PlanOptions& options) const override {
    const PointwisePlan pointwise = plan(options);
    const Scratch scratch(pointwise.workspace_bytes());
    std::vector<Finding> out;
    const auto note = [&](const PointwiseRun& run, const HostTensor& memory, std::string_view tensor) {
      Placement place(device.device);
      pointwise.run(placed(place, run), place(scratch), place.stream());
      place.finish();
      out.push_back(finding("forward", tensor, gathered(run.y), exact_, bound_));
      out.push_back(untouched("forward", memory.guards_intact() && scratch.guards_intact()));
    };
    for (const char* target : {"dense", "rows", "transposed"}) {
      const Operand y = make_operand(d_.dtype, rows_, columns_, target);
      note(run_of(a_.view, b_.view, y.view), y.memory, std::string("y ") + target);
    }
    const bool repeated = rows_ > 1 && layout_ == "broadcast";  // cannot be written
    if (has_a_ && !repeated && a_.view.dtype == d_.dtype) {
      const Operand a = make_operand(d_.dtype, rows_, columns_, layout_);
      scattered(a.view, gathered(a_.view));
      note(run_of(a.view, b_.view, a.view), a.memory, "y in the place of a");
    }
    if (has_b_) {
      const Operand b = make_operand(d_.dtype, rows_, columns_, "dense");
      scattered(b.view, gathered(b_.view));
      note(run_of(a_.view, b.view, b.view), b.memory, "y in the place of b");
    }
    return out;
  }

 private:
  PointwisePlan plan(const PlanOptions& options) const { return {d_, {rows_ * columns_}, device, options}; }

  PointwiseRun run_of(const ConstTensorView& a, const ConstTensorView& b, const TensorView& y) const {
    PointwiseRun run{.a = {}, .b = {}, .y = y};
    if (has_a_) run.a = a;
    if (has_b_) run.b = b;
    if (d_.operation == Pointwise::dropout) run.dropout_seed = 1234, run.dropout_offset = 77;
    return run;
  }

  /// Roundings of an f32 operation, and one to the storage type. Sums, products and the mask round once or twice. The smooth
  /// activations use e^x, tanh and erfc, whose absolute errors are below 8 u: an exponential within 2 units in the last place
  /// (4 u), a quotient, and polynomials of degree 8 whose terms sum to below 2 in magnitude and whose late terms, where Horner's
  /// rule rounds on values near 1, round twice each. They are multiplied by z, and in the slope of gelu_tanh by
  /// 0.5 z 0.8 (1 + 0.134 z²), twice for the square of tanh.
  std::vector<double> bound(const std::vector<double>& a, const std::vector<double>& b) const {
    const double u = unit_roundoff(DType::f32), storage = unit_roundoff(d_.dtype);
    std::vector<double> out;
    for (std::size_t i = 0; i < exact_.size(); ++i) {
      const double y = std::fabs(exact_[i]);
      double error = u * y;
      if (d_.operation == Pointwise::dropout && d_.dropout < 1)
        error += 2 * u * std::fabs(a[i]) / (1 - static_cast<double>(d_.dropout));
      const bool smooth = d_.activation > Activation::relu;
      const double z = smooth ? std::fabs(a[i]) : 0;
      if (smooth && d_.operation == Pointwise::activation) error += 10 * u * z;
      if (smooth && d_.operation == Pointwise::activation_gradient) error += 16 * u * (1 + z + 0.1 * z * z * z) * std::fabs(b[i]);
      out.push_back(error + storage * (y + error) + (d_.dtype == DType::f16 ? 0x1p-25 : 1e-37));
    }
    return out;
  }

  PointwiseDescription d_;
  std::int64_t rows_, columns_;
  std::string layout_;
  bool has_a_, has_b_;
  Operand a_, b_;
  std::vector<double> exact_, bound_;  // what the reference says in f64, and how far a row may be from it
};

}  // namespace

std::unique_ptr<Proof> pointwise_proof(const cases::Case& c) { return std::make_unique<PointwiseProof>(c); }

}  // namespace everglow::proof
