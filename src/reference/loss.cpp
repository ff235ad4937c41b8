// The classifier loss in plain loops with double accumulation: a row's logits, their log-sum-exp, and gradients from logits that
// are computed again class by class, so that no matrix of logits exists here either. Serves every dtype.
#include "core/arena.hpp"
#include "core/indices.hpp"
#include "core/mutant.hpp"
#include "reference/element.hpp"
#include "reference/rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow::reference {
namespace {

struct Scratch {
  double* logits = nullptr;       // [classes]
  double* log_sum_exp = nullptr;  // [rows]
  double* sums = nullptr;         // [inputs]
};

Scratch scratch_of(const LossQuery& q, Arena& arena) {
  Scratch s;
  s.logits = arena.take<double>(q.description.classes);
  if (!q.description.training) return s;
  s.log_sum_exp = arena.take<double>(q.sizes.rows);
  s.sums = arena.take<double>(q.description.inputs);
  return s;
}

double logit(const LossForward& t, std::int64_t row, std::int64_t c) {
  double sum = t.bias.given() ? read(t.bias, c) : 0;
  for (std::int64_t i = 0; i < t.x.size(1); ++i) sum += read(t.x, row, i) * read(t.weight, c, i);
  return sum;
}

/// Fills the logits of a row and returns their log-sum-exp.
double row_of_logits(const LossForward& t, std::int64_t row, double* logits) {
  const std::int64_t classes = t.weight.size(0);
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) top = std::fmax(top, logits[c] = logit(t, row, c));
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(logits[c] - top);
  return top + std::log(sum);
}

/// (1 - s) (lse - z_target) + s (lse - mean(z))
double row_loss(const LossQuery& q, const double* logits, double log_sum_exp, std::int64_t target) {
  const std::int64_t classes = q.description.classes;
  const double smoothing = q.description.smoothing;
  double mean = 0;
  for (std::int64_t c = 0; c < classes; ++c) mean += logits[c] / static_cast<double>(classes);
  const auto part_of = [](double share, double loss) { return share == 0 ? 0 : share * loss; };  // a logit may be -inf
  return part_of(1 - smoothing, log_sum_exp - logits[target]) + part_of(smoothing, log_sum_exp - mean);
}

/// d loss / d z_c
double logit_gradient(const LossQuery& q, double z, double log_sum_exp, bool is_target) {
  const double smoothing = q.description.smoothing;
  return std::exp(z - log_sum_exp) - (is_target ? flipped("loss.reference_target_sign", 1 - smoothing) : 0) -
         dropped("loss.reference_no_smoothing_in_gradient", smoothing / static_cast<double>(q.description.classes));
}

std::int64_t counted_rows(const LossQuery& q, const LossForward& t) {
  std::int64_t count = 0;
  for (std::int64_t n = 0; n < t.x.size(0); ++n) count += read_index(t.targets, n) != q.description.ignore_index ? 1 : 0;
  return count;
}

void forward(const LossQuery& q, const LossForward& t, void* workspace, const Stream&) {
  Arena arena(workspace);
  const Scratch s = scratch_of(q, arena);
  double sum = 0;
  for (std::int64_t n = 0; n < t.x.size(0); ++n) {
    const std::int64_t target = read_index(t.targets, n);
    if (target == q.description.ignore_index) continue;
    const double log_sum_exp = row_of_logits(t, n, s.logits);
    sum += row_loss(q, s.logits, log_sum_exp, target);
  }
  write(t.loss, sum, 0);
  if (t.count.given()) write(t.count, static_cast<double>(counted_rows(q, t)), 0);
}

/// dx of one row, from its logits.
void input_gradient(const LossQuery& q, const LossBackward& t, const Scratch& s, std::int64_t row, double factor) {
  const LossForward& f = t.forward;
  const std::int64_t target = read_index(f.targets, row);
  std::fill_n(s.sums, f.x.size(1), 0.0);
  for (std::int64_t c = 0; c < f.weight.size(0); ++c) {
    const double gradient = factor * logit_gradient(q, s.logits[c], s.log_sum_exp[row], c == target);
    for (std::int64_t i = 0; i < f.x.size(1); ++i)
      s.sums[i] += flipped("loss.reference_input_gradient_sign", gradient * read(f.weight, c, i));
  }
  for (std::int64_t i = 0; i < f.x.size(1); ++i) write(t.dx, s.sums[i], row, i);
}

/// The weight and bias gradients of one class.
void class_gradients(const LossQuery& q, const LossBackward& t, const Scratch& s, std::int64_t c, double factor) {
  const LossForward& f = t.forward;
  const bool weight = t.dweight.given(), bias = t.dbias.given();
  double bias_sum = bias && t.accumulate ? read(t.dbias, c) : 0;
  for (std::int64_t i = 0; i < f.x.size(1); ++i) s.sums[i] = weight && t.accumulate ? read(t.dweight, c, i) : 0;
  for (std::int64_t n = 0; n < f.x.size(0); ++n) {
    const std::int64_t target = read_index(f.targets, n);
    if (target == q.description.ignore_index) continue;
    const double gradient = factor * logit_gradient(q, logit(f, n, c), s.log_sum_exp[n], c == target);
    bias_sum += flipped("loss.reference_bias_gradient_sign", gradient);
    for (std::int64_t i = 0; i < f.x.size(1); ++i) s.sums[i] += gradient * read(f.x, n, i);
  }
  if (bias) write(t.dbias, bias_sum, c);
  if (!weight) return;
  for (std::int64_t i = 0; i < f.x.size(1); ++i) write(t.dweight, s.sums[i], c, i);
}

void forward_backward(const LossQuery& q, const LossBackward& t, void* workspace, const Stream&) {
  Arena arena(workspace);
  const Scratch s = scratch_of(q, arena);
  const LossForward& f = t.forward;
  const std::int64_t count = counted_rows(q, f);
  const double scale = t.scale.given() ? read(t.scale, 0) : 1;
  const double factor = t.divide_by_count && !mutant("loss.reference_sum_instead_of_mean")
                            ? scale / static_cast<double>(std::max<std::int64_t>(count, 1))
                            : scale;
  double sum = 0;
  for (std::int64_t n = 0; n < f.x.size(0); ++n) {
    const std::int64_t target = read_index(f.targets, n);
    if (target == q.description.ignore_index) {
      for (std::int64_t i = 0; i < f.x.size(1) && t.dx.given() && !mutant("loss.reference_ignored_rows_not_cleared"); ++i)
        write(t.dx, 0, n, i);
      continue;
    }
    s.log_sum_exp[n] = row_of_logits(f, n, s.logits);
    sum += row_loss(q, s.logits, s.log_sum_exp[n], target);
    if (t.dx.given()) input_gradient(q, t, s, n, factor);
  }
  write(f.loss, sum, 0);
  if (f.count.given()) write(f.count, static_cast<double>(count), 0);
  if (!t.dweight.given() && !t.dbias.given()) return;
  for (std::int64_t c = 0; c < q.description.classes; ++c) class_gradients(q, t, s, c, factor);
}

}  // namespace

const LossRow loss{.name = "reference.loss",
                   .accepts = [](const LossQuery&) { return accept(); },
                   .footprint = arena_footprint<scratch_of, LossQuery>,
                   .forward = forward,
                   .forward_backward = forward_backward};

}  // namespace everglow::reference
