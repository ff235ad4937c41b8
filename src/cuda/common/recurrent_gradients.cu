// The gradients of a stepwise layer over all steps: one product each for w_ih, w_hh and w_hr of a direction, one sum for the
// biases, and the products for x. Padding is copied as 0 before a product reads it.
#include "core/visit.hpp"
#include "cuda/common/recurrent_backward.hpp"
#include "cuda/common/recurrent_device.cuh"

namespace everglow::cuda {
namespace {

struct GatherParams {
  Walks walks;
  StepView x;  // [T, B, columns]
  States states;
  const float* gates = nullptr;  // as LayerReserve
  const float* cells = nullptr;
  std::int64_t row = 0, gate_row = 0;
  int direction = 0;
  bool resets = false;  // what R multiplied is r h
  bool tf32 = false;
  float* to = nullptr;  // [T·B, to_row]
  std::int64_t columns = 0, to_row = 0;

  __device__ Place place(std::int64_t at) const { return {walks, direction, at / walks.batch, at % walks.batch}; }
  __device__ const float* gate(std::int64_t at, std::int64_t i) const { return gates + at * row + direction * gate_row + i; }
};

/// Calls f(place, row of [T·B], column) for every valid step and stores what it gives; 0 past a length.
template <class F>
__device__ void gather(const GatherParams& p, const F& f) {
  const std::int64_t column = grid_column();
  if (column >= p.columns) return;
  for (std::int64_t at = grid_row(); at < p.walks.steps * p.walks.batch; at += grid_rows()) {
    const Place place = p.place(at);
    p.to[at * p.to_row + column] = place.valid ? f(place, at, column) : 0;
  }
}

template <class T>
__global__ void __launch_bounds__(128) inputs_kernel(const __grid_constant__ GatherParams p) {
  gather(p, [&](const Place& place, std::int64_t, std::int64_t i) { return widen(p.x.at<T>(place.step, place.b)[i]); });
}
/// What R multiplied: h before each step, or r h.
template <class T>
__global__ void __launch_bounds__(128) states_kernel(const __grid_constant__ GatherParams p) {
  gather(p, [&](const Place& place, std::int64_t at, std::int64_t j) {
    const float h = p.states.before<T>(p.walks, place, j);
    return p.resets ? rounded_factor(*p.gate(at, j) * h, p.tf32) : h;
  });
}
/// What a projection multiplied, made again.
__global__ void __launch_bounds__(128) outputs_kernel(const __grid_constant__ GatherParams p) {
  gather(p, [&](const Place& place, std::int64_t at, std::int64_t unit) {
    const float c = p.cells[place.cell(p.walks, place.step, unit)];
    return rounded_factor(*p.gate(at, 3 * p.walks.hidden + unit) * tanhf(c), p.tf32);
  });
}

/// dx from f32; 0 past a length, even where a weight is not finite.
struct InputGradientParams {
  Walks walks;
  const float* from = nullptr;  // [T·B, from_row]
  std::int64_t columns = 0, from_row = 0;
  StepView dx;
};
template <class T>
__global__ void __launch_bounds__(128) dx_kernel(const __grid_constant__ InputGradientParams p) {
  const std::int64_t i = grid_column();
  if (i >= p.columns) return;
  for (std::int64_t at = grid_row(); at < p.walks.steps * p.walks.batch; at += grid_rows()) {
    const std::int64_t step = at / p.walks.batch, b = at % p.walks.batch;
    p.dx.at<T>(step, b)[i] = narrow<T>(step < p.walks.length(b) ? p.from[at * p.from_row + i] : 0);
  }
}

/// A gradient in f32 to the caller's, in its type.
struct DeliverParams {
  const float* from = nullptr;
  void* to = nullptr;
  std::int64_t rows = 0, columns = 0, from_row = 0, to_row = 0;
  bool accumulate = false;
};
template <class T>
__global__ void __launch_bounds__(128) deliver_kernel(const __grid_constant__ DeliverParams p) {
  const std::int64_t column = grid_column();
  if (column >= p.columns) return;
  for (std::int64_t row = grid_row(); row < p.rows; row += grid_rows()) {
    T* const to = static_cast<T*>(p.to) + row * p.to_row + column;
    const float value = p.from[row * p.from_row + column];
    *to = narrow<T>(p.accumulate ? widen(*to) + value : value);
  }
}

struct Sums {
  const BackwardPass& pass;
  const LayerShape& s = pass.s;
  const RecurrentBackward& t = pass.t;
  const BackwardScratch& scratch = pass.scratch;

  Matrix by_rows(float* data, std::int64_t columns) const { return BackwardPass::dense(data, s.rows(), columns); }

  GatherParams gathered(std::int64_t direction, float* to, std::int64_t columns) const {
    GatherParams p;
    p.walks = walks_of(s, t), p.x = view_of(t.x), p.states = {view_of(t.y), view_of(t.h0)};
    p.gates = pass.kept.gates, p.cells = pass.kept.cells, p.row = s.row(), p.gate_row = s.gate_row();
    p.direction = static_cast<int>(direction), p.tf32 = wide_math(pass.q) == Math::tf32;
    p.to = to, p.columns = columns, p.to_row = line(columns);
    return p;
  }
  void gather_with(void (*kernel)(GatherParams), const GatherParams& p) const {
    launch(kernel, grid_over(s.rows(), p.columns), p, pass.stream);
  }

  void deliver(const float* from, std::int64_t from_row, const TensorView& to) const {
    const Matrix m = matrix_of(to);
    const DeliverParams p{.from = from,
                          .to = m.data,
                          .rows = m.rows,
                          .columns = m.columns,
                          .from_row = from_row,
                          .to_row = m.stride,
                          .accumulate = t.accumulate};
    visit_storage(m.dtype, [&](auto element) {
      launch(deliver_kernel<Stored<decltype(element)>>, grid_over(m.rows, m.columns), p, pass.stream);
    });
  }

  /// Rows of a weight gradient: gradientsᵀ times what the weights multiplied. In the caller's f32 at once, else rounded behind.
  void product(const Matrix& gradients, const Matrix& factors, const TensorView& to) const {
    if (to.dtype == DType::f32) return multiply(gradients.transposed(), factors, matrix_of(to), t.accumulate, pass.products());
    const Matrix made = BackwardPass::dense(scratch.dw, to.size(0), to.size(1));
    multiply(gradients.transposed(), factors, made, false, pass.products());
    deliver(scratch.dw, made.stride, to);
  }

  bool wanted(TensorView RecurrentWeightGradients::*gradient) const {
    return std::any_of(t.dweights.begin(), t.dweights.end(), [&](const auto& g) { return (g.*gradient).given(); });
  }

  template <class T>
  void input_weights() const {
    if (!wanted(&RecurrentWeightGradients::w_ih)) return;
    gather_with(inputs_kernel<T>, gathered(0, scratch.x, s.inputs));
    for (std::size_t d = 0; d < t.dweights.size(); ++d)
      if (t.dweights[d].w_ih.given())
        product(pass.gradients(scratch.dz, static_cast<std::int64_t>(d), 0, s.rows(), s.gates()), by_rows(scratch.x, s.inputs),
                t.dweights[d].w_ih);
  }

  template <class T>
  void recurrent_weights(std::int64_t d, const TensorView& to) const {
    if (!to.given()) return;
    GatherParams p = gathered(d, scratch.before, s.outputs);
    gather_with(states_kernel<T>, p);
    Matrix gradients = pass.gradients(scratch.du, d, 0, s.rows(), s.direct());
    product(gradients, by_rows(scratch.before, s.outputs), to.narrow(0, 0, s.direct()));
    if (s.direct() == s.gates()) return;
    p.resets = true;
    gather_with(states_kernel<T>, p);
    gradients.data = static_cast<float*>(gradients.data) + s.direct();
    gradients.columns = s.hidden;
    product(gradients, by_rows(scratch.before, s.outputs), to.narrow(0, s.direct(), s.hidden));
  }

  void projection_weights(std::int64_t d, const TensorView& to) const {
    if (!to.given()) return;
    gather_with(outputs_kernel, gathered(d, scratch.before, s.hidden));
    product(pass.total(d, 0, s.rows()), by_rows(scratch.before, s.hidden), to);
  }

  void biases(std::int64_t d, const RecurrentWeightGradients& to) const {
    const float* summed = nullptr;
    for (const auto& [gradients, bias] : {std::pair(scratch.dz, to.b_ih), std::pair(scratch.du, to.b_hh)}) {
      if (!bias.given()) continue;
      if (gradients != summed)
        sum_rows(pass.gradients(gradients, d, 0, s.rows(), s.gates()), {scratch.sums, 1, s.gates(), s.gates(), 1}, false,
                 scratch.sums + s.gates(), pass.stream);
      summed = gradients;
      deliver(scratch.sums, s.gates(), bias);
    }
  }

  template <class T>
  void inputs() const {
    if (!t.dx.given()) return;
    for (std::int64_t d = 0; d < s.directions; ++d)
      multiply(pass.gradients(scratch.dz, d, 0, s.rows(), s.gates()),
               BackwardPass::dense(pass.weights.of[d].wide_ih, s.gates(), s.inputs), by_rows(scratch.x, s.inputs), d > 0,
               pass.products());
    InputGradientParams p;
    p.walks = walks_of(s, t), p.from = scratch.x, p.columns = s.inputs, p.from_row = line(s.inputs), p.dx = view_of(t.dx);
    launch(dx_kernel<T>, grid_over(s.rows(), s.inputs), p, pass.stream);
  }

  template <class T>
  void run() const {
    input_weights<T>();
    for (std::size_t i = 0; i < t.dweights.size(); ++i) {
      const auto d = static_cast<std::int64_t>(i);
      recurrent_weights<T>(d, t.dweights[i].w_hh);
      projection_weights(d, t.dweights[i].w_hr);
      biases(d, t.dweights[i]);
    }
    inputs<T>();  // last: in the memory of x
  }
};

}  // namespace

void recurrent_gradients(const BackwardPass& pass) {
  visit_storage(pass.s.dtype, [&](auto element) { Sums{pass}.template run<Stored<decltype(element)>>(); });
}

}  // namespace everglow::cuda
