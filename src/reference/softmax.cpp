// Softmax in plain loops: maximum, sum, quotient, all in double. Serves every dtype.
#include "core/mutant.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <cmath>
#include <limits>

namespace everglow::reference {
namespace {

void forward(const SoftmaxQuery& q, const SoftmaxForward& t, void*, const Stream&) {
  for (std::int64_t r = 0; r < t.x.size(0); ++r) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    bool all_masked = true;  // every element is -inf; a NaN is not
    for (std::int64_t c = 0; c < t.x.size(1); ++c) {
      top = std::fmax(top, read(t.x, r, c));
      all_masked = all_masked && read(t.x, r, c) == -std::numeric_limits<double>::infinity();
    }
    for (std::int64_t c = 0; c < t.x.size(1); ++c) sum += std::exp(read(t.x, r, c) - top);
    const bool zero = q.description.masked_row == MaskedRow::zero && all_masked;
    for (std::int64_t c = 0; c < t.x.size(1); ++c) {
      const double shifted = read(t.x, r, c) - top;
      const double value = q.description.log ? shifted - std::log(sum) : std::exp(shifted) / sum;
      write(t.y, zero ? (q.description.log ? top : 0) : value, r, c);
    }
  }
}

void backward(const SoftmaxQuery& q, const SoftmaxBackward& t, void*, const Stream&) {
  for (std::int64_t r = 0; r < t.y.size(0); ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < t.y.size(1); ++c) sum += read(t.dy, r, c) * (q.description.log ? 1 : read(t.y, r, c));
    for (std::int64_t c = 0; c < t.y.size(1); ++c) {
      const double y = read(t.y, r, c), dy = read(t.dy, r, c);
      write(t.dx,
            q.description.log ? dy - dropped("softmax.reference_log_gradient_lacks_a_term", std::exp(y) * sum)
                              : y * (dy - flipped("softmax.reference_gradient_sign", sum)),
            r, c);
    }
  }
}

}  // namespace

const SoftmaxRow softmax{.name = "reference.softmax",
                         .accepts = [](const SoftmaxQuery&) { return accept(); },
                         .footprint = no_footprint<SoftmaxQuery>,
                         .forward = forward,
                         .backward = backward};

}  // namespace everglow::reference
