// Elementwise operations one element at a time, in double, for every dtype and any strides.
#include "core/mutant.hpp"
#include "core/philox.hpp"
#include "reference/activation.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

namespace everglow::reference {
namespace {

/// Offset of logical element i: row-major order over the shape, any strides.
template <class View>
std::int64_t element_offset(const View& view, std::int64_t i) {
  std::int64_t offset = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    offset += i % view.shape[d] * view.strides[d];
    i /= view.shape[d];
  }
  return offset;
}

double element(const ConstTensorView& view, std::int64_t i) { return read(view.data, view.dtype, element_offset(view, i)); }

double dropped_out(const PointwiseDescription& d, const PointwiseRun& t, std::int64_t i) {
  const double p = d.dropout;
  const bool keep = dropout_keeps(t.dropout_seed, t.dropout_offset, static_cast<std::uint64_t>(i), dropout_threshold(p));
  return (keep ? element(t.a, i) / (1 - dropped("pointwise.reference_dropout_not_scaled", p)) : 0) +
         (t.b.given() ? element(t.b, i) : 0);
}

double value(const PointwiseDescription& d, const PointwiseRun& t, std::int64_t i) {
  switch (d.operation) {
    case Pointwise::copy:
      return element(t.a, i);
    case Pointwise::add:
      return element(t.a, i) + element(t.b, i);
    case Pointwise::multiply:
      return element(t.a, i) * element(t.b, i);
    case Pointwise::scale:
      return d.factor * element(t.a, i);
    case Pointwise::fill:
      return d.factor;
    case Pointwise::dropout:
      return dropped_out(d, t, i);
    case Pointwise::activation:
      return activate(d.activation, element(t.a, i));
    case Pointwise::activation_gradient:
      return flipped("pointwise.reference_activation_gradient_sign", element(t.b, i)) *
             activation_slope(d.activation, element(t.a, i));
  }
  return 0;
}

void run(const PointwiseQuery& q, const PointwiseRun& t, void*, const Stream&) {
  for (std::int64_t i = 0; i < t.y.elements(); ++i) write(t.y.data, t.y.dtype, element_offset(t.y, i), value(q.description, t, i));
}

}  // namespace

const PointwiseRow pointwise{.name = "reference.pointwise",
                             .accepts = [](const PointwiseQuery&) { return accept(); },
                             .footprint = no_footprint<PointwiseQuery>,
                             .run = run};

}  // namespace everglow::reference
