// A case as something that can be proved: its tensors, the results of the reference row in f64, and for every row that accepts it
// the error of each output beside a bound that is derived here and nowhere else. Tests and `everglow check` run the same proofs.
#pragma once

#include "cases/case.hpp"
#include "cases/proof/tensor.hpp"

#include <everglow/plan.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::proof {

/// What one output of a run has shown.
struct Finding {
  std::string direction{};  // forward, backward
  std::string tensor{};
  double share = 0;          // the largest error as a share of its bound: at most 1 where `fault` is empty
  std::string fault{};       // what is wrong
  std::uint64_t digest = 0;  // of what came: equal bits have equal digests
};

/// Compares as `compare` does.
Finding finding(std::string_view direction, std::string_view tensor, const std::vector<double>& actual,
                const std::vector<double>& expected, const std::vector<double>& bound);
/// A finding of its own: nothing around the tensors and the workspace was written.
Finding untouched(std::string_view direction, bool guards_intact);

class Proof {
 public:
  virtual ~Proof() = default;
  /// Where the plans of `explain` and `run` are made: this machine's CPU, or the same with a lower instruction set. The reference's
  /// results do not depend on it.
  DeviceDescription device = Device::cpu();
  /// What a plan of the case explains. Throws as making that plan does.
  virtual Explanation explain(const PlanOptions& options) const = 0;
  /// Runs forward, and backward where the case has one, in all ways a caller may (packed weights or plain ones, ...) and looks at
  /// every output. Outputs are poisoned before; a workspace has exactly the bytes that the plan asks for. Throws as the plan does.
  virtual std::vector<Finding> run(const PlanOptions& options) const = 0;
};

/// Throws std::invalid_argument for an unknown layer or a value that no layer has.
std::unique_ptr<Proof> make_proof(const cases::Case& c);
std::unique_ptr<Proof> attention_proof(const cases::Case& c);
std::unique_ptr<Proof> linear_proof(const cases::Case& c);
std::unique_ptr<Proof> recurrent_proof(const cases::Case& c);
std::unique_ptr<Proof> softmax_proof(const cases::Case& c);
std::unique_ptr<Proof> embedding_proof(const cases::Case& c);
std::unique_ptr<Proof> loss_proof(const cases::Case& c);
std::unique_ptr<Proof> pointwise_proof(const cases::Case& c);
std::unique_ptr<Proof> adam_proof(const cases::Case& c);

/// The rows of the case's layer that accept it on the proof's device with these options, in the order of the table.
std::vector<std::string> accepting_rows(const Proof& proof, const PlanOptions& options = {});

}  // namespace everglow::proof
