// Plain recurrent layers that round where the layers round: sums and cell states in f32, h, the sequences between layers and all
// outputs in the storage type. Their error against f64 is the measure of what a row may err.
#pragma once

#include "cases/proof/recurrent_problem.hpp"

namespace everglow::proof {

RecurrentResult plain_recurrent(const RecurrentProblem& problem);

}  // namespace everglow::proof
