// Recurrent layers beside the reference, and the plain implementation whose error is the measure.
#include "cases/proof/proof.hpp"
#include "cases/proof/recurrent_plain.hpp"
#include "cases/proof/recurrent_problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow::proof {
namespace {

using Outputs = std::vector<std::pair<std::string, HostTensor>>;

double largest(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) out = std::max(out, std::fabs(value));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    out = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(out, difference);
  }
  return out;
}

class RecurrentProof final : public Proof {
 public:
  explicit RecurrentProof(const cases::Case& c) : problem_(c) {
    const Outputs exact = run_recurrent(problem_.as(DType::f64), {.force = "reference.recurrent"}).outputs();
    const Outputs plain = plain_recurrent(problem_).outputs();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      expected_.push_back(exact[i].second.values());
      bounds_.push_back(bound(exact[i].first, expected_[i], plain[i].second.values()));
    }
  }

  Explanation explain(const PlanOptions& options) const override {
    return RecurrentPlan(problem_.description, problem_.sizes, device, options).explain();
  }

  std::vector<Finding> run(const PlanOptions& options) const override {
    std::vector<Finding> out;
    for (const bool packed : {false, true}) {
      const RecurrentResult result = run_recurrent(problem_, options, {.packed = packed, .device = device});
      const std::string how = packed ? ", packed weights" : "";
      const Outputs outputs = result.outputs();
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::string& name = outputs[i].first;
        const char* direction = name == "y" || name == "hn" || name == "cn" ? "forward" : "backward";
        out.push_back(finding(direction, name + how, outputs[i].second.values(), expected_[i], bounds_[i]));
      }
      out.push_back(untouched(problem_.description.training ? "backward" : "forward", result.guards));
    }
    return out;
  }

 private:
  /// A bound from roundoff alone means nothing for a recurrence, which can amplify or forget errors. So a row may err, at worst
  /// over a tensor, twice as much as the plain implementation does. Beside that, 4 units of the largest factor that enters (gates,
  /// states and incoming gradients, all at most 1 here) or value: a gate is right to a few units of 1, whatever its product with
  /// others is, and a tensor of few elements may have been met exactly by plain. Past a length y and dx are exactly 0.
  std::vector<double> bound(const std::string& name, const std::vector<double>& exact, const std::vector<double>& plain) const {
    const double unit = std::max(unit_roundoff(DType::f32), unit_roundoff(problem_.description.dtype));
    const double allowed = 2 * largest_difference(plain, exact) + 4 * unit * std::max(1.0, largest(exact));
    std::vector<double> out(exact.size(), allowed);
    if (name != "y" && name != "dx") return out;
    const std::int64_t batch = problem_.sizes.batch, width = name == "y" ? problem_.width() : problem_.description.inputs;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = problem_.length(b); t < problem_.sizes.steps; ++t)
        std::fill_n(out.begin() + (t * batch + b) * width, width, 0.0);
    return out;
  }

  RecurrentProblem problem_;
  std::vector<std::vector<double>> expected_, bounds_;
};

}  // namespace

std::unique_ptr<Proof> recurrent_proof(const cases::Case& c) { return std::make_unique<RecurrentProof>(c); }

}  // namespace everglow::proof
