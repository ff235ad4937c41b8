// Attention beside the reference.
#include "cases/proof/attention_problem.hpp"
#include "cases/proof/proof.hpp"

#include <iterator>

namespace everglow::proof {
namespace {

class AttentionProof final : public Proof {
 public:
  explicit AttentionProof(const cases::Case& c)
      : description_(attention_description(c)),
        sizes_(attention_sizes(c)),
        inputs_(attention_inputs(description_, sizes_, c)),
        exact_(exact_attention(description_, sizes_, inputs_)),
        bound_(attention_bounds(description_, sizes_, inputs_, exact_)),
        stored_bound_(attention_bounds(description_, sizes_, inputs_, exact_, Operands::stored)) {}

  Explanation explain(const PlanOptions& options) const override {
    return AttentionPlan(description_, sizes_, device, options).explain();
  }

  std::vector<Finding> run(const PlanOptions& options) const override {
    std::vector<Finding> out = findings({.options = options, .device = device}, "");
    std::vector<Finding> strided = findings({.options = options, .device = device, .steps_first = true}, " strided");
    out.insert(out.end(), std::make_move_iterator(strided.begin()), std::make_move_iterator(strided.end()));
    return out;
  }

 private:
  std::vector<Finding> findings(const AttentionRun& run, const std::string& how) const {
    const AttentionResults came = run_attention(description_, sizes_, inputs_, run);
    const AttentionResults& bound = run.options.force.starts_with("sm") ? stored_bound_ : bound_;  // rows of matrix instructions
    std::vector<Finding> out{finding("forward", "o" + how, came.o, exact_.o, bound.o),
                             finding("forward", "lse" + how, came.lse, exact_.lse, bound.lse),
                             finding("backward", "dq" + how, came.dq, exact_.dq, bound.dq),
                             finding("backward", "dk" + how, came.dk, exact_.dk, bound.dk),
                             finding("backward", "dv" + how, came.dv, exact_.dv, bound.dv)};
    if (description_.bias) out.push_back(finding("backward", "dbias" + how, came.dbias, exact_.dbias, bound.dbias));
    out.push_back(untouched("backward", came.guards_intact));
    return out;
  }

  AttentionDescription description_;
  AttentionSizes sizes_;
  AttentionInputs inputs_;
  AttentionResults exact_, bound_, stored_bound_;
};

}  // namespace

std::unique_ptr<Proof> attention_proof(const cases::Case& c) { return std::make_unique<AttentionProof>(c); }

}  // namespace everglow::proof
