// One recurrent problem of proofs and tests: all tensors of a case, poisoned where nothing may be read, and the outputs of a run.
#pragma once

#include "cases/case.hpp"
#include "cases/proof/tensor.hpp"

#include <everglow/recurrent.hpp>

#include <string>
#include <vector>

namespace everglow::proof {

struct HostWeights {
  HostTensor w_ih, w_hh, b_ih, b_hh, w_hr;
};

/// Names of a case: cell, steps, batch, inputs, hidden, layers, bidirectional, projection, dropout, dtype, training (1), bias (1),
/// resets (0), states (0: no h0, c0, dhn, dcn), lengths (random, full, zero; by default none), dense (0: rows of every tensor lie
/// apart), cell_dtype (of c0, cn, dc0, dcn; by default dtype), gradient_dtype (of the weights' gradients; by default dtype).
struct RecurrentProblem {
  RecurrentDescription description;
  RecurrentSizes sizes;
  DType cell_dtype, gradient_dtype;
  bool states = true, dense = false;
  HostTensor x, h0, c0, lengths, resets, dy, dhn, dcn;
  std::vector<HostWeights> weights;
  std::uint64_t dropout_seed = 11, dropout_offset = 5;

  explicit RecurrentProblem(const cases::Case& c);
  /// The same values with everything in another type; padding of x and dy is NaN again.
  RecurrentProblem as(DType dtype) const;
  std::int64_t length(std::int64_t row) const;
  std::int64_t outputs() const { return description.projection > 0 ? description.projection : description.hidden; }
  std::int64_t width() const { return description.directions() * outputs(); }  // of y
  std::int64_t gates() const;                                                  // rows of w_ih
  std::int64_t inputs_of(std::size_t part) const;                              // columns of w_ih
  std::vector<std::int64_t> states_shape(std::int64_t columns) const;
  std::vector<RecurrentWeights> weight_views() const;
  HostTensor blank(DType dtype, std::vector<std::int64_t> shape) const;  // rows apart where `dense` is false

 private:
  void random_weights(bool bias);
};

struct RecurrentResult {
  HostTensor y, hn, cn, dx, dh0, dc0;
  std::vector<HostWeights> dweights;
  Scratch reserve{0}, workspace{0}, packed_bytes{0};
  PackedWeights packed;
  bool guards = true;  // nothing outside the outputs was touched

  /// Names and tensors of everything that forward and backward wrote.
  std::vector<std::pair<std::string, HostTensor>> outputs() const;
};

/// Whether a row of the table serves this problem.
bool accepts(const std::string& row, const RecurrentProblem& problem);

struct RecurrentRun {
  bool packed = false;
  bool backward = true;
  DeviceDescription device = Device::cpu();
};
RecurrentResult run_recurrent(const RecurrentProblem& problem, const PlanOptions& options, const RecurrentRun& how = {});
/// Forward into a result made by `blank_result`; apart from run_recurrent so that tests can repeat a part.
RecurrentResult blank_result(const RecurrentProblem& problem, const RecurrentPlan& plan);
RecurrentForward forward_tensors(const RecurrentProblem& problem, const RecurrentResult& result,
                                 const std::vector<RecurrentWeights>& weights);
RecurrentBackward backward_tensors(const RecurrentProblem& problem, const RecurrentResult& result,
                                   const std::vector<RecurrentWeights>& weights,
                                   const std::vector<RecurrentWeightGradients>& gradients);
std::vector<RecurrentWeightGradients> gradient_views(const RecurrentResult& result);

}  // namespace everglow::proof
