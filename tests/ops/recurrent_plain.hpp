// A plain LSTM that rounds where the layer rounds: sums and cell states in f32, h and all outputs in the storage type. Its error
// against f64 is the measure of what a row may err.
#pragma once

#include "ops/recurrent_problem.hpp"

namespace everglow::test {

RecurrentResult plain_lstm(const RecurrentProblem& problem);

}  // namespace everglow::test
