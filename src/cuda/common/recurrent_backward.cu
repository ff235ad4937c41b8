// A stepwise layer on a card, backward: a step at a time a fused cell for both directions and a product with the recurrent matrix
// in each, then (recurrent_gradients.cu) one product or sum for each gradient over all steps.
#include "cuda/common/recurrent_backward.hpp"

#include "core/visit.hpp"
#include "cuda/common/recurrent_cells.cuh"
#include "cuda/common/recurrent_device.cuh"

namespace everglow::cuda {
namespace {

BackwardScratch take_backward(Arena& arena, const LayerShape& s, const RecurrentQuery& q) {
  const std::int64_t places = s.directions * s.batch;
  BackwardScratch out;
  out.dz = arena.take<float>(s.rows() * s.row());
  out.du = s.cell == Cell::gru ? arena.take<float>(s.rows() * s.row()) : out.dz;
  if (s.cell == Cell::gru_reset_before) out.mixed = arena.take<float>(places * line(s.hidden));
  if (s.projects) {
    out.total = arena.take<float>(s.rows() * s.directions * line(s.outputs));
    out.out = arena.take<float>(places * line(s.hidden));
  }
  out.dh = arena.take<float>(places * line(s.outputs));
  if (s.cell == Cell::lstm) out.dc = arena.take<float>(places * s.hidden);
  out.x = arena.take<float>(s.rows() * line(s.inputs));
  out.before = arena.take<float>(s.rows() * line(s.projects ? std::max(s.hidden, s.outputs) : s.outputs));
  if (s.narrow()) {
    const std::int64_t of_gates = s.gates() * line(std::max(s.inputs, s.outputs));
    out.dw = arena.take<float>(std::max(of_gates, s.projects ? s.outputs * line(s.hidden) : 0));
  }
  out.sums = arena.take<float>(s.gates() + sum_rows_scratch(s.rows(), s.gates()));
  out.library = take_library(arena, q);
  out.room = take_weights(arena, s);
  return out;
}

struct BackwardParams {
  Walks walks;
  std::int64_t iteration = 0;
  const float* gates = nullptr;  // as LayerReserve
  const float* cells = nullptr;
  float* dz = nullptr;  // as BackwardScratch
  float* du = nullptr;
  std::int64_t row = 0, gate_row = 0;
  float* mixed = nullptr;
  float* total = nullptr;
  float* out = nullptr;  // null: no projection
  float* dh = nullptr;
  float* dc = nullptr;
  std::int64_t unit_row = 0, state_row = 0;
  bool tf32 = false;  // of values that a product reads
  States states;
  StepView dy;  // [T, B, directions·O]
  StepView c0, dhn, dcn, dh0, dc0;
  std::uint32_t* status = nullptr;
};

/// The states' gradients behind the last step of every walk.
template <class T>
__global__ void __launch_bounds__(128) begin_kernel(const __grid_constant__ BackwardParams p) {
  const std::int64_t j = grid_column();
  const int direction = static_cast<int>(blockIdx.z);
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const std::int64_t at = direction * p.walks.batch + b;
    if (j < p.walks.outputs) p.dh[at * p.state_row + j] = 0;
    if (p.dc != nullptr && j < p.walks.hidden)
      p.dc[at * p.walks.hidden + j] = p.dcn.data != nullptr ? p.dcn.read<T>(direction, b, j) : 0;
    if (p.status != nullptr && j == 0 && p.walks.clamps(b)) atomicOr(p.status, status_lengths);
  }
}

/// The states' gradients before the first step of every walk. Downwards walks that begin below the last step have left dh0 already.
template <class T>
__global__ void __launch_bounds__(128) finish_kernel(const __grid_constant__ BackwardParams p) {
  const std::int64_t j = grid_column();
  const int direction = static_cast<int>(blockIdx.z);
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const std::int64_t length = p.walks.length(b), at = direction * p.walks.batch + b;
    if (p.dc0.data != nullptr && j < p.walks.hidden) p.dc0.write<T>(direction, b, j, p.dc[at * p.walks.hidden + j]);
    if (p.dh0.data == nullptr || j >= p.walks.outputs) continue;
    float value = 0;
    if (length == 0)
      value = p.dhn.data != nullptr ? p.dhn.read<T>(direction, b, j) : 0;
    else if (direction == 1 && length < p.walks.steps)
      continue;
    else if (direction == 1 || !p.walks.cut(0, 0, b, length))
      value = p.dh[at * p.state_row + j];
    p.dh0.write<T>(direction, b, j, value);
  }
}

/// The gradient of h after a valid step: what came back over the edge behind it, and dy.
template <class T>
__device__ float incoming(const BackwardParams& p, const Place& place, std::int64_t j) {
  float sum = 0;
  if (place.last()) {
    if (p.dhn.data != nullptr) sum = p.dhn.read<T>(place.direction, place.b, j);
  } else if (!place.cut_after(p.walks)) {
    sum = p.dh[place.at * p.state_row + j];
  }
  if (p.dy.data != nullptr) sum += widen(p.dy.at<T>(place.step, place.b)[place.direction * p.walks.outputs + j]);
  return sum;
}

/// dh of a downwards walk, when the loop has come to the step behind its first: the next product overwrites it.
template <class T>
__device__ void leave_dh0(const BackwardParams& p, const Place& place, std::int64_t j) {
  if (p.dh0.data != nullptr && place.direction == 1 && place.length > 0 && place.step == place.length)
    p.dh0.write<T>(1, place.b, j, p.dh[place.at * p.state_row + j]);
}

template <class T>
__global__ void __launch_bounds__(128) total_kernel(const __grid_constant__ BackwardParams p) {
  const std::int64_t j = grid_column();
  if (j >= p.walks.outputs) return;
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const Place place(p.walks, p.iteration, b);
    if (!place.valid) leave_dh0<T>(p, place, j);
    p.total[((place.step * p.walks.batch + b) * p.walks.directions + place.direction) * p.state_row + j] =
        place.valid ? rounded_factor(incoming<T>(p, place, j), p.tf32) : 0;
  }
}

template <class T>
__device__ void lstm_unit(const BackwardParams& p, const Place& place, std::int64_t unit, std::int64_t at, float dh) {
  const std::int64_t hidden = p.walks.hidden;
  const float* const gate = p.gates + at;
  const bool cut = place.cut(p.walks);
  float before = 0;
  if (!cut && !place.first())
    before = p.cells[place.cell(p.walks, Walks::before(place.direction, place.step), unit)];
  else if (!cut && p.c0.data != nullptr)
    before = p.c0.read<T>(place.direction, place.b, unit);
  float* const state = p.dc + place.at * hidden + unit;
  float dc = *state;
  const LstmUnit d = lstm_backward({gate[0], gate[hidden], gate[2 * hidden], gate[3 * hidden]}, before,
                                   p.cells[place.cell(p.walks, place.step, unit)], dh, dc);
  *state = cut ? 0 : dc;
  float* const dz = p.dz + at;
  dz[0] = rounded_factor(d.i, p.tf32), dz[hidden] = rounded_factor(d.f, p.tf32);
  dz[2 * hidden] = rounded_factor(d.g, p.tf32), dz[3 * hidden] = rounded_factor(d.o, p.tf32);
}

template <class T>
__device__ void gru_unit(const BackwardParams& p, const Place& place, std::int64_t unit, std::int64_t at, float dh) {
  const std::int64_t hidden = p.walks.hidden;
  const float* const gate = p.gates + at;
  const GruUnit gates{gate[0], gate[hidden], gate[2 * hidden]};
  const GruUnit d = gru_backward(gates, p.states.before<T>(p.walks, place, unit), dh);
  const float dr = d.n * p.cells[place.cell(p.walks, place.step, unit)] * gates.r * (1 - gates.r);
  for (float* const to : {p.dz + at, p.du + at}) to[0] = rounded_factor(dr, p.tf32), to[hidden] = rounded_factor(d.z, p.tf32);
  p.dz[at + 2 * hidden] = rounded_factor(d.n, p.tf32);
  p.du[at + 2 * hidden] = rounded_factor(d.n * gates.r, p.tf32);
  p.dh[place.at * p.state_row + unit] = dh * gates.z;  // what the product adds to
}

/// The first phase makes the gradients of z and n; the second, behind their product with R, that of r.
template <class T, int phase>
__device__ void reset_unit(const BackwardParams& p, const Place& place, std::int64_t unit, std::int64_t at) {
  const std::int64_t hidden = p.walks.hidden;
  const float* const gate = p.gates + at;
  const float h = p.states.before<T>(p.walks, place, unit);
  float* const carried = p.dh + place.at * p.state_row + unit;
  if constexpr (phase == 0) {
    const float dh = incoming<T>(p, place, unit);
    const GruUnit d = gru_backward({gate[0], gate[hidden], gate[2 * hidden]}, h, dh);
    p.dz[at + hidden] = rounded_factor(d.z, p.tf32), p.dz[at + 2 * hidden] = rounded_factor(d.n, p.tf32);
    *carried = dh * gate[hidden];
  } else {
    const float r = gate[0], mixed = p.mixed[place.at * p.unit_row + unit];
    p.dz[at] = rounded_factor(mixed * h * r * (1 - r), p.tf32);
    *carried += mixed * r;
  }
}

template <class T, Cell cell, int phase>
__global__ void __launch_bounds__(128) cell_kernel(const __grid_constant__ BackwardParams p) {
  const std::int64_t unit = grid_column(), hidden = p.walks.hidden;
  constexpr int slots = cell == Cell::lstm ? 4 : cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1;
  if (unit >= hidden) return;
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const Place place(p.walks, p.iteration, b);
    const std::int64_t at = (place.step * p.walks.batch + b) * p.row + place.direction * p.gate_row + unit;
    if (!place.valid) {
      if (phase > 0) continue;
      if (p.out == nullptr) leave_dh0<T>(p, place, unit);
      for (int q = 0; q < slots; ++q) p.dz[at + q * hidden] = p.du[at + q * hidden] = 0;
      continue;
    }
    if constexpr (cell == Cell::gru_reset_before) {
      reset_unit<T, phase>(p, place, unit, at);
      continue;
    }
    const float dh = p.out != nullptr ? p.out[place.at * p.unit_row + unit] : incoming<T>(p, place, unit);
    if constexpr (cell == Cell::lstm)
      lstm_unit<T>(p, place, unit, at, dh);
    else if constexpr (cell == Cell::gru)
      gru_unit<T>(p, place, unit, at, dh);
    else if constexpr (cell != Cell::gru_reset_before)
      p.dz[at] = rounded_factor(dh * plain_slope<cell>(p.gates[at]), p.tf32);
  }
}

struct Loop {
  const BackwardPass& pass;
  const LayerShape& s = pass.s;
  const RecurrentBackward& t = pass.t;
  const BackwardScratch& scratch = pass.scratch;

  BackwardParams params() const {
    BackwardParams p;
    p.walks = walks_of(s, t);
    p.gates = pass.kept.gates, p.cells = pass.kept.cells;
    p.dz = scratch.dz, p.du = scratch.du, p.row = s.row(), p.gate_row = s.gate_row();
    p.mixed = scratch.mixed, p.total = scratch.total, p.out = scratch.out, p.dh = scratch.dh, p.dc = scratch.dc;
    p.unit_row = line(s.hidden), p.state_row = line(s.outputs), p.tf32 = wide_math(pass.q) == Math::tf32;
    p.states = {view_of(t.y), view_of(t.h0)}, p.dy = view_of(t.dy), p.c0 = view_of(t.c0);
    p.dhn = view_of(t.dhn), p.dcn = view_of(t.dcn), p.dh0 = view_of(t.dh0), p.dc0 = view_of(t.dc0);
    p.status = static_cast<std::uint32_t*>(t.status.data);
    return p;
  }

  /// Calls f(direction, step) for what the loop is at.
  template <class F>
  void each(std::int64_t iteration, const F& f) const {
    for (std::int64_t d = 0; d < s.directions; ++d) f(d, d == 0 ? iteration : s.steps - 1 - iteration);
  }
  Matrix of_direction(float* data, std::int64_t direction, std::int64_t columns) const {
    return BackwardPass::dense(data + direction * s.batch * line(columns), s.batch, columns);
  }

  void unproject(std::int64_t iteration) const {
    each(iteration, [&](std::int64_t d, std::int64_t step) {
      multiply(pass.total(d, step, s.batch), BackwardPass::dense(pass.weights.of[d].wide_hr, s.outputs, s.hidden),
               of_direction(scratch.out, d, s.hidden), false, pass.products());
    });
  }
  void unmix(std::int64_t iteration) const {
    each(iteration, [&](std::int64_t d, std::int64_t step) {
      Matrix candidate = pass.gradients(scratch.dz, d, step, s.batch, s.hidden);
      candidate.data = static_cast<float*>(candidate.data) + s.direct();
      multiply(candidate, BackwardPass::dense(pass.weights.of[d].wide_hh + s.direct() * line(s.hidden), s.hidden, s.hidden),
               of_direction(scratch.mixed, d, s.hidden), false, pass.products());
    });
  }
  /// dh of the step before: through R, beside what a GRU carries past its gates.
  void through(std::int64_t iteration) const {
    each(iteration, [&](std::int64_t d, std::int64_t step) {
      multiply(pass.gradients(scratch.du, d, step, s.batch, s.direct()),
               BackwardPass::dense(pass.weights.of[d].wide_hh, s.direct(), s.outputs), of_direction(scratch.dh, d, s.outputs),
               s.slots == 3, pass.products());
    });
  }

  template <class T, Cell cell>
  void run() const {
    BackwardParams p = params();
    const Grid states = grid_over(s.batch, std::max({s.hidden, s.outputs, std::int64_t{1}}), s.directions);
    const Grid units = grid_over(s.batch, s.hidden, s.directions), outputs = grid_over(s.batch, s.outputs, s.directions);
    launch(begin_kernel<T>, states, p, pass.stream);
    for (std::int64_t i = s.steps - 1; i >= 0; --i) {
      p.iteration = i;
      if (s.projects) {
        launch(total_kernel<T>, outputs, p, pass.stream);
        unproject(i);
      }
      launch(cell_kernel<T, cell, 0>, units, p, pass.stream);
      if constexpr (cell == Cell::gru_reset_before) {
        unmix(i);
        launch(cell_kernel<T, cell, 1>, units, p, pass.stream);
      }
      if (i > 0 || t.dh0.given()) through(i);
    }
    if (t.dh0.given() || t.dc0.given()) launch(finish_kernel<T>, states, p, pass.stream);
  }
};

}  // namespace

std::size_t recurrent_backward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_backward(arena, layer_shape(q.description, q.sizes.steps, q.sizes.batch), q);
  return arena.bytes();
}

void recurrent_backward(const RecurrentQuery& q, const RecurrentBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(q.device.device.index);
  const LayerShape s = layer_shape(q.description, t.x.size(0), t.x.size(1));
  // The reserve is only read; the arena that finds its parts hands out mutable pointers.
  Arena arena(workspace), reserve(const_cast<void*>(t.reserve.data));
  const BackwardScratch scratch = take_backward(arena, s, q);
  const WeightNeeds needs{.wide_ih = t.dx.given(), .wide_hh = true, .wide_hr = s.projects};
  const LayerWeights weights = weights_of_run(scratch.room, s, t, needs, stream_of(stream));
  const BackwardPass pass{q, t, s, take_reserve(reserve, s), scratch, weights, stream_of(stream)};
  visit_storage(s.dtype, [&](auto element) {
    visit_cell(s.cell, [&](auto cell) { Loop{pass}.template run<Stored<decltype(element)>, decltype(cell)::value>(); });
  });
  recurrent_gradients(pass);
}

}  // namespace everglow::cuda
