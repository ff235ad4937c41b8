// An LSTM over two sequences of different length: describe, plan, see what was chosen and why, run.
#include <everglow/everglow.hpp>

#include <iostream>
#include <vector>

int main() {
  using namespace everglow;
  const std::int64_t steps = 16, batch = 2, inputs = 32, hidden = 64;
  const RecurrentPlan plan({.cell = Cell::lstm, .inputs = inputs, .hidden = hidden, .lengths = true},
                           {.steps = steps, .batch = batch});
  for (const auto& row : plan.explain().rows)
    std::cout << (row.taken ? "-> " : "   ") << row.name << ": " << (row.taken ? "taken" : row.reason) << '\n';

  std::vector<float> x(steps * batch * inputs, 0.5F), y(steps * batch * hidden);
  std::vector<float> w_ih(4 * hidden * inputs, 0.01F), w_hh(4 * hidden * hidden, 0.01F);
  std::vector<std::int32_t> lengths{16, 9};
  const RecurrentWeights weights[] = {
      {.w_ih = {w_ih.data(), DType::f32, {4 * hidden, inputs}}, .w_hh = {w_hh.data(), DType::f32, {4 * hidden, hidden}}}};
  const Buffer scratch(plan.workspace_bytes(), Device::cpu());
  plan.forward({.x = {x.data(), DType::f32, {steps, batch, inputs}},
                .weights = weights,
                .y = {y.data(), DType::f32, {steps, batch, hidden}},
                .lengths = {lengths.data(), DType::i32, {batch}}},
               scratch);
  std::cout << "sequence 0 ends with " << y[((steps - 1) * batch + 0) * hidden]
            << ", sequence 1 ended before: " << y[((steps - 1) * batch + 1) * hidden] << '\n';
  return y[((steps - 1) * batch + 0) * hidden] > 0 && y[((steps - 1) * batch + 1) * hidden] == 0 ? 0 : 1;
}
