// A stepwise layer on a card, forward: one product for the inputs of all steps in each direction, then a step at a time a product
// with the recurrent matrix in each direction and one fused cell for both.
#include "core/visit.hpp"
#include "cuda/common/recurrent_cells.cuh"
#include "cuda/common/recurrent_device.cuh"

namespace everglow::cuda {
namespace {

struct ForwardScratch {
  LayerReserve kept;          // in the caller's reserve where the plan trains
  void* x = nullptr;          // [T, B, line(I)], a copy of rows that a product cannot read or reads slowly
  float* products = nullptr;  // [directions, B, gate_row], R h of a GRU
  float* mixed = nullptr;     // [directions, B, line(H)], r h where the reset comes before the product
  float* out = nullptr;       // [directions, B, line(H)], what goes into a projection
  float* raw = nullptr;       // [directions, B, line(O)], what comes out of it
  void* h = nullptr;          // [directions, B, state_row]
  float* c = nullptr;         // [directions, B, H]
  void* library = nullptr;
  LayerWeights room;
};

ForwardScratch take_forward(Arena& arena, const LayerShape& s, const RecurrentQuery& q) {
  const auto stored = [&](std::int64_t elements) {
    return arena.take<std::byte>(elements * static_cast<std::int64_t>(size_of(s.dtype)));
  };
  const std::int64_t places = s.directions * s.batch;
  ForwardScratch out;
  if (!q.description.training) out.kept.gates = arena.take<float>(s.rows() * s.row());
  out.x = stored(s.rows() * line(s.inputs, s.dtype));
  if (s.cell == Cell::gru) out.products = arena.take<float>(places * s.gate_row());
  if (s.cell == Cell::gru_reset_before) out.mixed = arena.take<float>(places * line(s.hidden));
  if (s.projects) out.out = arena.take<float>(places * line(s.hidden)), out.raw = arena.take<float>(places * line(s.outputs));
  out.h = stored(places * s.state_row());
  if (s.cell == Cell::lstm) out.c = arena.take<float>(places * s.hidden);
  out.library = take_library(arena, q);
  out.room = take_weights(arena, s);
  return out;
}

struct ForwardParams {
  Walks walks;
  std::int64_t iteration = 0;
  float* gates = nullptr;  // as ForwardScratch and its strides
  std::int64_t row = 0, gate_row = 0;
  float* cells = nullptr;
  bool keeps = false;               // gates and cells for backward
  const float* products = nullptr;  // null: zero
  const void* bias_ih[2] = {nullptr, nullptr};
  const void* bias_hh[2] = {nullptr, nullptr};
  void* h = nullptr;
  std::int64_t state_row = 0;
  float* c = nullptr;
  float* mixed = nullptr;
  float* out = nullptr;  // null: no projection
  const float* raw = nullptr;
  std::int64_t unit_row = 0, raw_row = 0;
  bool tf32 = false;        // of f32 values that a product reads
  StepView y;               // [T, B, directions·O]
  StepView h0, c0, hn, cn;  // [directions, B, O or H]
  std::uint32_t* status = nullptr;
};

/// The state of a row before its walk. Element j of h and of c.
template <class T>
__global__ void __launch_bounds__(128) begin_kernel(const __grid_constant__ ForwardParams p) {
  const std::int64_t j = grid_column();
  const int direction = static_cast<int>(blockIdx.z);
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const std::int64_t length = p.walks.length(b), at = direction * p.walks.batch + b;
    const bool fresh = direction == 0 && length > 0 && p.walks.cut(0, 0, b, length);
    if (j < p.walks.outputs)
      static_cast<T*>(p.h)[at * p.state_row + j] = p.h0.data != nullptr && !fresh ? p.h0.at<T>(direction, b)[j] : narrow<T>(0.0F);
    if (p.c != nullptr && j < p.walks.hidden)
      p.c[at * p.walks.hidden + j] = p.c0.data != nullptr && !fresh ? p.c0.read<T>(direction, b, j) : 0;
    if (p.status != nullptr && j == 0 && p.walks.clamps(b)) atomicOr(p.status, status_lengths);
  }
}

template <class T>
__global__ void __launch_bounds__(128) finish_kernel(const __grid_constant__ ForwardParams p) {
  const std::int64_t j = grid_column();
  const int direction = static_cast<int>(blockIdx.z);
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const std::int64_t at = direction * p.walks.batch + b;
    if (p.hn.data != nullptr && j < p.walks.outputs) p.hn.at<T>(direction, b)[j] = static_cast<T*>(p.h)[at * p.state_row + j];
    if (p.cn.data != nullptr && j < p.walks.hidden) p.cn.write<T>(direction, b, j, p.c[at * p.walks.hidden + j]);
  }
}

/// h of a valid step, rounded once, for y and for the next step.
template <class T>
__device__ void put_h(const ForwardParams& p, const Place& place, std::int64_t j, float value) {
  const T h = narrow<T>(value);
  p.y.at<T>(place.step, place.b)[place.direction * p.walks.outputs + j] = h;
  static_cast<T*>(p.h)[place.at * p.state_row + j] = place.cut_after(p.walks) ? narrow<T>(0.0F) : h;
}
template <class T>
__device__ float bias_of(const void* bias, std::int64_t i) {
  return bias != nullptr ? widen(static_cast<const T*>(bias)[i]) : 0;
}

template <class T>
__device__ void lstm_unit(const ForwardParams& p, const Place& place, std::int64_t unit, float* gate) {
  const std::int64_t hidden = p.walks.hidden;
  const auto sum = [&](int q) {
    const std::int64_t i = q * hidden + unit;
    return gate[q * hidden] + (bias_of<T>(p.bias_ih[place.direction], i) + bias_of<T>(p.bias_hh[place.direction], i));
  };
  LstmUnit gates{sum(0), sum(1), sum(2), sum(3)};
  float* const state = p.c + place.at * hidden + unit;
  float c = *state;
  const float out = lstm_forward(gates, c);
  if (p.keeps) {
    gate[0] = gates.i, gate[hidden] = gates.f, gate[2 * hidden] = gates.g, gate[3 * hidden] = gates.o;
    p.cells[place.cell(p.walks, place.step, unit)] = c;
  }
  *state = place.cut_after(p.walks) ? 0 : c;
  if (p.out != nullptr)
    p.out[place.at * p.unit_row + unit] = rounded_factor(out, p.tf32);
  else
    put_h<T>(p, place, unit, out);
}

template <class T>
__device__ void gru_unit(const ForwardParams& p, const Place& place, std::int64_t unit, float* gate) {
  const std::int64_t hidden = p.walks.hidden;
  const float* const product = p.products != nullptr ? p.products + place.at * p.gate_row + unit : nullptr;
  const auto of_input = [&](int q) { return gate[q * hidden] + bias_of<T>(p.bias_ih[place.direction], q * hidden + unit); };
  const auto of_state = [&](int q) {
    return (product != nullptr ? product[q * hidden] : 0) + bias_of<T>(p.bias_hh[place.direction], q * hidden + unit);
  };
  const float inner = of_state(2);
  GruUnit gates{gate_sigmoid(of_input(0) + of_state(0)), gate_sigmoid(of_input(1) + of_state(1)), 0};
  gates.n = tanhf(of_input(2) + gates.r * inner);
  if (p.keeps) {
    gate[0] = gates.r, gate[hidden] = gates.z, gate[2 * hidden] = gates.n;
    p.cells[place.cell(p.walks, place.step, unit)] = inner;
  }
  put_h<T>(p, place, unit, gru_output(gates, widen(static_cast<const T*>(p.h)[place.at * p.state_row + unit])));
}

/// A GRU that resets before the product works in two phases with a product between: r, z and r h, then n and h.
template <class T, int phase>
__device__ void reset_unit(const ForwardParams& p, const Place& place, std::int64_t unit, float* gate) {
  const std::int64_t hidden = p.walks.hidden;
  const auto sum = [&](int q) {
    const std::int64_t i = q * hidden + unit;
    return gate[q * hidden] + (bias_of<T>(p.bias_ih[place.direction], i) + bias_of<T>(p.bias_hh[place.direction], i));
  };
  const float h = widen(static_cast<const T*>(p.h)[place.at * p.state_row + unit]);
  if constexpr (phase == 0) {
    const float r = gate_sigmoid(sum(0)), z = gate_sigmoid(sum(1));
    gate[0] = r, gate[hidden] = z;
    p.mixed[place.at * p.unit_row + unit] = rounded_factor(r * h, p.tf32);
  } else {
    const float n = tanhf(sum(2));
    gate[2 * hidden] = n;
    put_h<T>(p, place, unit, gru_output({gate[0], gate[hidden], n}, h));
  }
}

template <class T, Cell cell, int phase>
__global__ void __launch_bounds__(128) cell_kernel(const __grid_constant__ ForwardParams p) {
  const std::int64_t unit = grid_column(), hidden = p.walks.hidden;
  if (unit >= hidden) return;
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const Place place(p.walks, p.iteration, b);
    if (!place.valid) {
      if (phase == 0 && p.out == nullptr) p.y.at<T>(place.step, b)[place.direction * p.walks.outputs + unit] = narrow<T>(0.0F);
      continue;
    }
    float* const gate = p.gates + (place.step * p.walks.batch + b) * p.row + place.direction * p.gate_row + unit;
    if constexpr (cell == Cell::lstm) {
      lstm_unit<T>(p, place, unit, gate);
    } else if constexpr (cell == Cell::gru) {
      gru_unit<T>(p, place, unit, gate);
    } else if constexpr (cell == Cell::gru_reset_before) {
      reset_unit<T, phase>(p, place, unit, gate);
    } else {
      const int d = place.direction;
      const float h = plain_forward<cell>(*gate + (bias_of<T>(p.bias_ih[d], unit) + bias_of<T>(p.bias_hh[d], unit)));
      if (p.keeps) *gate = h;
      put_h<T>(p, place, unit, h);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(128) projected_kernel(const __grid_constant__ ForwardParams p) {
  const std::int64_t j = grid_column();
  if (j >= p.walks.outputs) return;
  for (std::int64_t b = grid_row(); b < p.walks.batch; b += grid_rows()) {
    const Place place(p.walks, p.iteration, b);
    if (place.valid)
      put_h<T>(p, place, j, p.raw[place.at * p.raw_row + j]);
    else
      p.y.at<T>(place.step, b)[place.direction * p.walks.outputs + j] = narrow<T>(0.0F);
  }
}

struct Forward {
  const RecurrentQuery& q;
  const RecurrentForward& t;
  LayerShape s;
  ForwardScratch scratch;
  LayerWeights weights;
  cudaStream_t stream;

  ProductContext products() const {
    return {.card = q.device.device.index, .math = wide_math(q), .workspace = scratch.library, .stream = stream};
  }
  Matrix gates_of(std::int64_t direction, std::int64_t step, std::int64_t rows, std::int64_t columns) const {
    return {scratch.kept.gates + step * s.batch * s.row() + direction * s.gate_row(), rows, columns, s.row(), 1, DType::f32};
  }
  Matrix stored(void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) const {
    return {data, rows, columns, stride, 1, s.dtype};
  }
  std::byte* h_of(std::int64_t direction) const {
    return static_cast<std::byte*>(scratch.h) + static_cast<std::size_t>(direction * s.batch * s.state_row()) * size_of(s.dtype);
  }

  ForwardParams params() const {
    ForwardParams p;
    p.walks = walks_of(s, t);
    p.gates = scratch.kept.gates, p.cells = scratch.kept.cells;
    p.row = s.row(), p.gate_row = s.gate_row(), p.keeps = q.description.training;
    for (std::size_t d = 0; d < t.weights.size(); ++d) p.bias_ih[d] = t.weights[d].b_ih.data, p.bias_hh[d] = t.weights[d].b_hh.data;
    p.h = scratch.h, p.state_row = s.state_row(), p.c = scratch.c;
    p.mixed = scratch.mixed, p.out = scratch.out, p.unit_row = line(s.hidden);
    p.raw = scratch.raw, p.raw_row = line(s.outputs);
    p.tf32 = wide_math(q) == Math::tf32, p.y = view_of(t.y);
    p.h0 = view_of(t.h0), p.c0 = view_of(t.c0), p.hn = view_of(t.hn), p.cn = view_of(t.cn);
    p.status = static_cast<std::uint32_t*>(t.status.data);
    return p;
  }

  /// x as one matrix: the caller's where its rows stand evenly and on 16 bytes, else a copy.
  Matrix input() const {
    const recurrent::StepRows rows = recurrent::step_rows(t.x);
    const auto bytes = static_cast<std::size_t>(rows.stride) * size_of(s.dtype);
    const bool even =
        rows.folds && rows.stride >= s.inputs && bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(t.x.data) % 16 == 0;
    if (even) return stored(const_cast<void*>(t.x.data), s.rows(), s.inputs, rows.stride);
    const std::int64_t stride = line(s.inputs, s.dtype);
    for (std::int64_t part = 0; part < (rows.folds ? 1 : s.steps); ++part) {
      const ConstTensorView view = rows.folds ? t.x : t.x.narrow(0, part, 1);
      const std::int64_t count = rows.folds ? s.rows() : s.batch;
      copy_matrix(stored(const_cast<void*>(view.data), count, s.inputs, rows.stride),
                  stored(static_cast<std::byte*>(scratch.x) + static_cast<std::size_t>(part * count * stride) * size_of(s.dtype),
                         count, s.inputs, stride),
                  false, stream);
    }
    return stored(scratch.x, s.rows(), s.inputs, stride);
  }

  void inputs() const {
    const Matrix x = input();
    for (std::int64_t d = 0; d < s.directions; ++d)
      multiply(x, stored(weights.of[d].w_ih, s.gates(), s.inputs, line(s.inputs, s.dtype)).transposed(),
               gates_of(d, 0, s.rows(), s.gates()), false, products());
  }

  /// R h: a GRU's stands alone, the others' is added to W x.
  void recurrent_products(std::int64_t iteration) const {
    for (std::int64_t d = 0; d < s.directions; ++d) {
      const std::int64_t step = d == 0 ? iteration : s.steps - 1 - iteration;
      const Matrix r = stored(weights.of[d].w_hh, s.direct(), s.outputs, s.state_row());
      const bool apart = s.cell == Cell::gru;
      const Matrix to = apart ? Matrix{scratch.products + d * s.batch * s.gate_row(), s.batch, s.direct(), s.gate_row(), 1}
                              : gates_of(d, step, s.batch, s.direct());
      multiply(stored(h_of(d), s.batch, s.outputs, s.state_row()), r.transposed(), to, !apart, products());
    }
  }

  void candidate_products(std::int64_t iteration) const {
    for (std::int64_t d = 0; d < s.directions; ++d) {
      const std::int64_t step = d == 0 ? iteration : s.steps - 1 - iteration, wide = line(s.hidden);
      const Matrix r{weights.of[d].wide_hh + s.direct() * wide, s.hidden, s.hidden, wide, 1};
      Matrix to = gates_of(d, step, s.batch, s.hidden);
      to.data = static_cast<float*>(to.data) + s.direct();
      multiply({scratch.mixed + d * s.batch * wide, s.batch, s.hidden, wide, 1}, r.transposed(), to, true, products());
    }
  }

  void project() const {
    for (std::int64_t d = 0; d < s.directions; ++d) {
      const std::int64_t wide = line(s.hidden), raw = line(s.outputs);
      multiply({scratch.out + d * s.batch * wide, s.batch, s.hidden, wide, 1},
               Matrix{weights.of[d].wide_hr, s.outputs, s.hidden, wide, 1}.transposed(),
               {scratch.raw + d * s.batch * raw, s.batch, s.outputs, raw, 1}, false, products());
    }
  }

  template <class T, Cell cell>
  void run() const {
    ForwardParams p = params();
    const Grid states = grid_over(s.batch, std::max({s.hidden, s.outputs, std::int64_t{1}}), s.directions);
    const Grid units = grid_over(s.batch, s.hidden, s.directions), outputs = grid_over(s.batch, s.outputs, s.directions);
    launch(begin_kernel<T>, states, p, stream);
    inputs();
    for (std::int64_t i = 0; i < s.steps; ++i) {
      p.iteration = i;
      const bool any = i > 0 || t.h0.given();  // without h0 the first step of a walk has nothing to multiply
      // With lengths a walk may begin at any iteration, but its h is 0 until then.
      if (any) recurrent_products(i);
      p.products = any ? scratch.products : nullptr;
      launch(cell_kernel<T, cell, 0>, units, p, stream);
      if constexpr (cell == Cell::gru_reset_before) {
        if (any) candidate_products(i);
        launch(cell_kernel<T, cell, 1>, units, p, stream);
      }
      if (!s.projects) continue;
      project();
      launch(projected_kernel<T>, outputs, p, stream);
    }
    if (t.hn.given() || t.cn.given()) launch(finish_kernel<T>, states, p, stream);
  }
};

}  // namespace

std::size_t recurrent_forward_bytes(const RecurrentQuery& q) {
  Arena arena;
  take_forward(arena, layer_shape(q.description, q.sizes.steps, q.sizes.batch), q);
  return arena.bytes();
}

void recurrent_forward(const RecurrentQuery& q, const RecurrentForward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(q.device.device.index);
  const LayerShape s = layer_shape(q.description, t.x.size(0), t.x.size(1));
  Arena arena(workspace), reserve(t.reserve.data);
  ForwardScratch scratch = take_forward(arena, s, q);
  if (q.description.training) scratch.kept = take_reserve(reserve, s);
  const WeightNeeds needs{.w_ih = true, .w_hh = true, .wide_hh = s.cell == Cell::gru_reset_before, .wide_hr = s.projects};
  const Forward pass{q, t, s, scratch, weights_of_run(scratch.room, s, t, needs, stream_of(stream)), stream_of(stream)};
  visit_storage(s.dtype, [&](auto element) {
    visit_cell(s.cell, [&](auto cell) { pass.template run<Stored<decltype(element)>, decltype(cell)::value>(); });
  });
}

}  // namespace everglow::cuda
