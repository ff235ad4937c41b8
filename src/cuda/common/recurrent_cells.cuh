// The recurrent cells of one hidden unit, forward and backward, in f32. Gates stand in torch's order, `apart` elements from one to
// the next.
#pragma once

#include <everglow/recurrent.hpp>

#include <cstdint>

namespace everglow::cuda {

__device__ inline float gate_sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

struct LstmUnit {
  float i, f, g, o;
};
/// From sums to gates; c becomes the cell state after the step. What the cell puts out.
__device__ inline float lstm_forward(LstmUnit& gate, float& c) {
  gate = {gate_sigmoid(gate.i), gate_sigmoid(gate.f), tanhf(gate.g), gate_sigmoid(gate.o)};
  c = gate.f * c + gate.i * gate.g;
  return gate.o * tanhf(c);
}
/// The gradients of the sums. dc, that of the cell state after the step, becomes that before it.
__device__ inline LstmUnit lstm_backward(const LstmUnit& gate, float c_before, float c_after, float dh, float& dc) {
  const float squashed = tanhf(c_after);
  const float d = dc + dh * gate.o * (1 - squashed * squashed);
  dc = d * gate.f;
  return {d * gate.g * gate.i * (1 - gate.i), d * c_before * gate.f * (1 - gate.f), d * gate.i * (1 - gate.g * gate.g),
          dh * squashed * gate.o * (1 - gate.o)};
}

struct GruUnit {
  float r, z, n;
};
__device__ inline float gru_output(const GruUnit& gate, float h) { return (1 - gate.z) * gate.n + gate.z * h; }
/// The gradients of the sums of z and n; r is left to the caller, since it depends on where the reset comes.
__device__ inline GruUnit gru_backward(const GruUnit& gate, float h, float dh) {
  return {0, dh * (h - gate.n) * gate.z * (1 - gate.z), dh * (1 - gate.z) * (1 - gate.n * gate.n)};
}

template <Cell cell>
__device__ float plain_forward(float x) {
  if constexpr (cell == Cell::tanh) return tanhf(x);
  return x < 0 ? 0 : x;  // NaN stays NaN
}
/// The slope where the cell put out h.
template <Cell cell>
__device__ float plain_slope(float h) {
  if constexpr (cell == Cell::tanh) return 1 - h * h;
  return h > 0 ? 1 : 0;
}

template <class F>
void visit_cell(Cell cell, const F& f) {
  if (cell == Cell::lstm) return f(std::integral_constant<Cell, Cell::lstm>{});
  if (cell == Cell::gru) return f(std::integral_constant<Cell, Cell::gru>{});
  if (cell == Cell::gru_reset_before) return f(std::integral_constant<Cell, Cell::gru_reset_before>{});
  if (cell == Cell::tanh) return f(std::integral_constant<Cell, Cell::tanh>{});
  return f(std::integral_constant<Cell, Cell::relu>{});
}

}  // namespace everglow::cuda
