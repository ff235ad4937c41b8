// The time loop of a recurrent layer on a CPU, and what stands around it.
#pragma once

#include <everglow/recurrent.hpp>

#include "plan/gemm.hpp"

namespace everglow::plan {

/// How src/cpu/recurrent_loop.cpp shares a loop: threads of one direction take rows of the batch, or, where these are few, hidden
/// units and meet after each step.
struct CpuLoop {
  int team = 1;     // threads of all directions
  int threads = 1;  // of one direction
  int in_turn = 1;  // directions that one thread takes one after the other
  bool by_rows = true;
  double slower = 1;  // a thread beside the others, compared with one alone
};
CpuLoop cpu_loop(const RecurrentDescription& description, const RecurrentSizes& sizes, const Machine& machine);

/// [rows, depth] x packed [depth, columns], by the threads of one direction. `weights`: elements that stay in their caches.
struct LoopProduct {
  double rows, columns, depth;
  bool wide = false;  // the rows are f32 whatever the weights are, so that no pairs of bf16 are multiplied
};
double cpu_loop_product_us(const CpuLoop& loop, const Machine& machine, double weights, const LoopProduct& product);

struct CpuStep {
  double hand_off_us = 0, broadcast_us = 0, arithmetic_us = 0;
  double us() const { return hand_off_us + broadcast_us + arithmetic_us; }
};
/// A step of all directions of one layer.
CpuStep cpu_step(const RecurrentDescription& description, const RecurrentSizes& sizes, const Machine& machine, bool backward);

struct CpuPasses {
  double forward_us = 0, backward_us = 0;
};
/// One layer without its products over all steps.
CpuPasses cpu_layer(const RecurrentDescription& description, const RecurrentSizes& sizes, std::int64_t inputs,
                    const Machine& machine);

}  // namespace everglow::plan
