// Peers in the same process: oneDNN's own primitives on the tensors that our rows are timed on. Without oneDNN there are none.
#pragma once

#include "bench/problem.hpp"

namespace everglow::bench {

struct LinearTensors {
  TensorSets sets;
  bool training = true;
  int x = 0, weight = 0, bias = -1, y = 0, z = -1, dy = -1, dx = -1, dweight = -1, dbias = -1;

  TensorView at(int tensor, std::int64_t set) const { return tensor < 0 ? TensorView() : sets.at(tensor, set); }
};

/// Rows of w_ih and w_hh for one hidden unit.
constexpr int gates_of(Cell cell) {
  if (cell == Cell::lstm) return 4;
  return cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1;
}

/// The tensors of one layer and direction.
struct RecurrentNumbers {
  int w_ih = 0, w_hh = 0, b_ih = -1, b_hh = -1, w_hr = -1;
};
struct RecurrentTensors {
  TensorSets sets;
  bool training = true;
  int x = 0, h0 = 0, c0 = 0, y = 0, hn = 0, cn = 0, dy = 0, dx = 0, lengths = -1, resets = -1;
  std::vector<RecurrentNumbers> weights, dweights;  // of each direction

  TensorView at(int tensor, std::int64_t set) const { return tensor < 0 ? TensorView() : sets.at(tensor, set); }
};

/// One row that takes the weights as they are and one that packed them ahead; none where oneDNN does not have the problem.
std::vector<Row> onednn_linear(const LinearDescription& description, const LinearSizes& sizes,
                               const std::shared_ptr<const LinearTensors>& tensors, int threads);
/// LSTM of one layer and direction whose rows are all as long; others have no row.
std::vector<Row> onednn_lstm(const RecurrentDescription& description, const RecurrentSizes& sizes,
                             const std::shared_ptr<const RecurrentTensors>& tensors, int threads);

}  // namespace everglow::bench
