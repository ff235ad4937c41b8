// The plain recurrent layers: one layer, then one row of the batch after the other, sums from left to right.
#include "cases/proof/recurrent_plain.hpp"

#include "core/philox.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::proof {
namespace {

float at(const HostTensor& tensor, std::int64_t i) { return tensor.const_view().given() ? static_cast<float>(tensor.at(i)) : 0.0F; }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
void add(HostTensor& to, std::int64_t i, float value) {
  if (to.const_view().given()) to.put(i, at(to, i) + value);
}

/// What one layer adds up in f32 and rounds at the end.
struct Sums {
  std::vector<HostWeights> weights;
  HostTensor dx;
};

/// One row of the batch in one direction of a problem of one layer.
struct Plain {
  const RecurrentProblem& p;
  RecurrentResult& r;
  std::int64_t direction, row;
  Cell kind = p.description.cell;
  std::int64_t inputs = p.description.inputs, hidden = p.description.hidden, outputs = p.outputs(), width = p.width();
  std::int64_t length = p.length(row), rows = p.gates();
  bool projects = p.description.projection > 0;
  const HostWeights& w = p.weights[static_cast<std::size_t>(direction)];
  std::vector<float> gates = std::vector<float>(static_cast<std::size_t>(length * rows));
  std::vector<float> cells = std::vector<float>(static_cast<std::size_t>((length + 1) * hidden));  // [0] is c0; GRU: R h + b'

  std::int64_t place(std::int64_t s) const { return (direction == 0 ? s : length - 1 - s) * p.sizes.batch + row; }
  std::int64_t state(std::int64_t j) const { return (direction * p.sizes.batch + row) * outputs + j; }
  std::int64_t cell_state(std::int64_t j) const { return (direction * p.sizes.batch + row) * hidden + j; }
  float& gate(std::int64_t s, std::int64_t q, std::int64_t j) { return gates[static_cast<std::size_t>(s * rows + q * hidden + j)]; }
  float& cell(std::int64_t s, std::int64_t j) { return cells[static_cast<std::size_t>(s * hidden + j)]; }
  /// Whether the edge over which the walk comes to its step s is cut.
  bool cut(std::int64_t s) const {
    if (!p.description.resets || (direction == 1 && s == 0)) return false;
    return p.resets.at(direction == 0 ? place(s) : place(s - 1)) != 0;
  }
  float after(std::int64_t s, std::int64_t j) const {
    return s == 0 ? at(p.h0, state(j)) : at(r.y, place(s - 1) * width + direction * outputs + j);
  }
  float before(std::int64_t s, std::int64_t j) const { return cut(s) ? 0 : after(s, j); }
  float cell_before(std::int64_t s, std::int64_t j) { return cut(s) ? 0 : cell(s, j); }

  float of_input(std::int64_t s, std::int64_t n) const {
    float sum = at(w.b_ih, n);
    for (std::int64_t i = 0; i < inputs; ++i) sum += at(w.w_ih, n * inputs + i) * at(p.x, place(s) * inputs + i);
    return sum;
  }
  float of_state(std::int64_t s, std::int64_t n, bool reset) {
    float sum = at(w.b_hh, n);
    for (std::int64_t j = 0; j < outputs; ++j) sum += at(w.w_hh, n * outputs + j) * before(s, j) * (reset ? gate(s, 0, j) : 1.0F);
    return sum;
  }

  /// What the cell puts out, before a projection.
  float out(std::int64_t s, std::int64_t j) {
    if (kind == Cell::lstm) return gate(s, 3, j) * std::tanh(cell(s + 1, j));
    if (rows == hidden) return gate(s, 0, j);
    return (1 - gate(s, 1, j)) * gate(s, 2, j) + gate(s, 1, j) * before(s, j);
  }

  void step(std::int64_t s) {
    for (std::int64_t n = 0; n < rows; ++n) {
      const std::int64_t q = n / hidden, j = n % hidden;
      const float input = of_input(s, n), recurrent = of_state(s, n, kind == Cell::gru_reset_before && q == 2);
      const float sum = input + recurrent;
      if (kind == Cell::gru && q == 2) {
        cell(s + 1, j) = recurrent;
        gate(s, q, j) = std::tanh(input + gate(s, 0, j) * recurrent);
      } else if (kind == Cell::relu) {
        gate(s, q, j) = std::max(sum, 0.0F);
      } else {
        gate(s, q, j) = kind == Cell::tanh || q == 2 ? std::tanh(sum) : sigmoid(sum);
      }
    }
    for (std::int64_t j = 0; kind == Cell::lstm && j < hidden; ++j)
      cell(s + 1, j) = gate(s, 1, j) * cell_before(s, j) + gate(s, 0, j) * gate(s, 2, j);
    for (std::int64_t j = 0; j < outputs; ++j) {
      float h = projects ? 0 : out(s, j);
      for (std::int64_t k = 0; projects && k < hidden; ++k) h += at(w.w_hr, j * hidden + k) * out(s, k);
      r.y.put(place(s) * width + direction * outputs + j, h);
    }
  }

  void forward() {
    for (std::int64_t j = 0; j < hidden; ++j) cell(0, j) = at(p.c0, cell_state(j));
    for (std::int64_t s = 0; s < length; ++s) step(s);
    for (std::int64_t j = 0; j < outputs; ++j) r.hn.put(state(j), after(length, j));
    for (std::int64_t j = 0; r.cn.const_view().given() && j < hidden; ++j) r.cn.put(cell_state(j), cell(length, j));
  }

  /// The gradients before the activations of W x + b (dz) and of R h + b' (du), from that of what the cell put out.
  void cell_gradient(std::int64_t s, const std::vector<float>& dout, std::vector<float>& dc, std::vector<float>& dz,
                     std::vector<float>& carried) {
    const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    for (std::int64_t j = 0; j < hidden; ++j) {
      const float d = dout[index(j)];
      if (rows == hidden) {
        const float h = gate(s, 0, j);
        dz[index(j)] = d * (kind == Cell::tanh ? 1 - h * h : h > 0 ? 1.0F : 0.0F);
      } else if (kind == Cell::lstm) {
        const float i = gate(s, 0, j), f = gate(s, 1, j), c = gate(s, 2, j), o = gate(s, 3, j),
                    squashed = std::tanh(cell(s + 1, j));
        const float e = dc[index(j)] + d * o * (1 - squashed * squashed);
        dz[index(j)] = e * c * i * (1 - i), dz[index(hidden + j)] = e * cell_before(s, j) * f * (1 - f);
        dz[index(2 * hidden + j)] = e * i * (1 - c * c), dz[index(3 * hidden + j)] = d * squashed * o * (1 - o);
        dc[index(j)] = e * f;
      } else {
        const float z = gate(s, 1, j), n = gate(s, 2, j);
        dz[index(2 * hidden + j)] = d * (1 - z) * (1 - n * n);
        dz[index(hidden + j)] = d * (before(s, j) - n) * z * (1 - z);
        carried[index(j)] = d * z;
      }
    }
    if (kind != Cell::gru && kind != Cell::gru_reset_before) return;
    for (std::int64_t j = 0; j < hidden; ++j) {
      float mixed = 0;  // the gradient of r h where the reset comes before the product
      for (std::int64_t k = 0; k < hidden; ++k) mixed += dz[index(2 * hidden + k)] * at(w.w_hh, (2 * hidden + k) * hidden + j);
      const float reset = gate(s, 0, j);
      const float dr = kind == Cell::gru ? dz[index(2 * hidden + j)] * cell(s + 1, j) : mixed * before(s, j);
      dz[index(j)] = dr * reset * (1 - reset);
      if (kind == Cell::gru_reset_before) carried[index(j)] += mixed * reset;
    }
  }

  void weight_gradients(std::int64_t s, const std::vector<float>& dz, const std::vector<float>& du, Sums& sums) {
    HostWeights& g = sums.weights[static_cast<std::size_t>(direction)];
    for (std::int64_t n = 0; n < rows; ++n) {
      const float a = dz[static_cast<std::size_t>(n)], b = du[static_cast<std::size_t>(n)];
      const bool reset = kind == Cell::gru_reset_before && n / hidden == 2;
      add(g.b_ih, n, a), add(g.b_hh, n, b);
      for (std::int64_t j = 0; j < outputs; ++j) add(g.w_hh, n * outputs + j, b * before(s, j) * (reset ? gate(s, 0, j) : 1.0F));
      for (std::int64_t i = 0; i < inputs; ++i) {
        add(g.w_ih, n * inputs + i, a * at(p.x, place(s) * inputs + i));
        add(sums.dx, place(s) * inputs + i, a * at(w.w_ih, n * inputs + i));
      }
    }
  }

  /// Adds to the sums in the order of the steps.
  void backward(Sums& sums) {
    std::vector<float> dh(static_cast<std::size_t>(outputs)), dc(static_cast<std::size_t>(hidden));
    for (std::int64_t j = 0; j < outputs; ++j) dh[static_cast<std::size_t>(j)] = at(p.dhn, state(j));
    for (std::int64_t j = 0; j < hidden; ++j) dc[static_cast<std::size_t>(j)] = at(p.dcn, cell_state(j));
    for (std::int64_t s = length - 1; s >= 0; --s) {
      std::vector<float> dout(dc.size()), dz(static_cast<std::size_t>(rows)), carried(dh.size());
      for (std::int64_t j = 0; j < outputs; ++j) {
        const float d = dh[static_cast<std::size_t>(j)] += at(p.dy, place(s) * width + direction * outputs + j);
        if (!projects) dout[static_cast<std::size_t>(j)] = d;
        for (std::int64_t k = 0; projects && k < hidden; ++k) {
          dout[static_cast<std::size_t>(k)] += d * at(w.w_hr, j * hidden + k);
          add(sums.weights[static_cast<std::size_t>(direction)].w_hr, j * hidden + k, d * out(s, k));
        }
      }
      cell_gradient(s, dout, dc, dz, carried);
      std::vector<float> du = dz;
      for (std::int64_t j = 0; kind == Cell::gru && j < hidden; ++j) du[static_cast<std::size_t>(2 * hidden + j)] *= gate(s, 0, j);
      for (std::int64_t j = 0; j < outputs; ++j) {
        float sum = carried[static_cast<std::size_t>(j)];
        for (std::int64_t n = 0; n < (kind == Cell::gru_reset_before ? 2 * hidden : rows); ++n)
          sum += du[static_cast<std::size_t>(n)] * at(w.w_hh, n * outputs + j);
        dh[static_cast<std::size_t>(j)] = cut(s) ? 0 : sum;
      }
      if (cut(s)) std::fill(dc.begin(), dc.end(), 0.0F);
      weight_gradients(s, dz, du, sums);
    }
    for (std::int64_t j = 0; j < outputs; ++j) r.dh0.put(state(j), dh[static_cast<std::size_t>(j)]);
    for (std::int64_t j = 0; r.dc0.const_view().given() && j < hidden; ++j)
      r.dc0.put(cell_state(j), dc[static_cast<std::size_t>(j)]);
  }
};

HostTensor zeros_like(const HostTensor& tensor) {
  const ConstTensorView view = tensor.const_view();
  if (!view.given()) return {};
  HostTensor out(DType::f32, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  out.fill(0);
  return out;
}

void copy(HostTensor& to, const HostTensor& from) {
  if (to.const_view().given()) to.set(from.values());
}

/// One layer of a stack: its own problem, its result, and the rows that ran.
struct Layer {
  RecurrentProblem p;
  RecurrentResult r;
  std::vector<Plain> rows;

  explicit Layer(const RecurrentProblem& problem) : p(problem), r(blank_result(p, RecurrentPlan(p.description, p.sizes))) {
    r.y.fill(0);
  }
  void forward() {
    for (std::int64_t direction = 0; direction < p.description.directions(); ++direction)
      for (std::int64_t b = 0; b < p.sizes.batch; ++b) rows.push_back(Plain{p, r, direction, b}), rows.back().forward();
  }
  void backward() {
    Sums sums{{}, zeros_like(r.dx)};
    for (const HostWeights& g : r.dweights)
      sums.weights.push_back({zeros_like(g.w_ih), zeros_like(g.w_hh), zeros_like(g.b_ih), zeros_like(g.b_hh), zeros_like(g.w_hr)});
    for (Plain& row : rows) row.backward(sums);
    r.dx.set(sums.dx.values());
    for (std::size_t i = 0; i < sums.weights.size(); ++i) {
      HostWeights &to = r.dweights[i], &from = sums.weights[i];
      copy(to.w_ih, from.w_ih), copy(to.w_hh, from.w_hh), copy(to.b_ih, from.b_ih), copy(to.b_hh, from.b_hh);
      copy(to.w_hr, from.w_hr);
    }
  }
};

/// The part of h0, hn and their like that a layer has: elements from layer · count on.
HostTensor part_of(const HostTensor& all, std::int64_t layer, const RecurrentProblem& p) {
  if (!all.const_view().given()) return {};
  const std::int64_t directions = p.description.directions(), columns = all.const_view().size(2);
  HostTensor out(all.const_view().dtype, {directions, p.sizes.batch, columns});
  const std::int64_t count = directions * p.sizes.batch * columns;
  for (std::int64_t i = 0; i < count; ++i) out.put(i, all.at(layer * count + i));
  return out;
}
void put_part(HostTensor& all, std::int64_t layer, const HostTensor& part) {
  if (!all.const_view().given()) return;
  const std::int64_t count = part.const_view().elements();
  for (std::int64_t i = 0; i < count; ++i) all.put(layer * count + i, part.at(i));
}

/// The sequence between a layer and the next, or its gradient.
HostTensor dropped(const RecurrentProblem& p, std::int64_t layer, const HostTensor& from) {
  const double probability = p.description.dropout;
  HostTensor out(p.description.dtype, {p.sizes.steps, p.sizes.batch, p.width()});
  const std::int64_t count = out.const_view().elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const bool keep = dropout_keeps(p.dropout_seed, p.dropout_offset, static_cast<std::uint64_t>(layer * count + i),
                                    dropout_threshold(probability));
    out.put(i, keep ? at(from, i) * static_cast<float>(1 / (1 - probability)) : 0);
  }
  return out;
}

RecurrentProblem layer_problem(const RecurrentProblem& p, std::int64_t layer, const HostTensor& x) {
  const std::int64_t directions = p.description.directions();
  RecurrentProblem out = p;
  out.description.layers = 1, out.description.dropout = 0;
  out.description.inputs = x.const_view().size(2);
  out.x = x;
  for (HostTensor* tensor : {&out.h0, &out.c0, &out.dhn, &out.dcn}) *tensor = part_of(*tensor, layer, p);
  out.weights.assign(p.weights.begin() + layer * directions, p.weights.begin() + (layer + 1) * directions);
  return out;
}

}  // namespace

RecurrentResult plain_recurrent(const RecurrentProblem& p) {
  RecurrentResult r = blank_result(p, RecurrentPlan(p.description, p.sizes));
  std::vector<Layer> layers;
  layers.reserve(static_cast<std::size_t>(p.description.layers));  // rows refer to their layer
  for (std::int64_t i = 0; i < p.description.layers; ++i) {
    const HostTensor x = i == 0 ? p.x : dropped(p, i - 1, layers.back().r.y);
    layers.emplace_back(layer_problem(p, i, x)).forward();
    put_part(r.hn, i, layers.back().r.hn), put_part(r.cn, i, layers.back().r.cn);
  }
  r.y.set(layers.back().r.y.values());
  if (!p.description.training) return r;
  r.dweights.clear();
  for (std::int64_t i = p.description.layers - 1; i >= 0; --i) {
    Layer& layer = layers[static_cast<std::size_t>(i)];
    if (i + 1 < p.description.layers) layer.p.dy = dropped(p, i, layers[static_cast<std::size_t>(i + 1)].r.dx);
    layer.backward();
    put_part(r.dh0, i, layer.r.dh0), put_part(r.dc0, i, layer.r.dc0);
    r.dweights.insert(r.dweights.begin(), layer.r.dweights.begin(), layer.r.dweights.end());
  }
  r.dx.set(layers.front().r.dx.values());
  return r;
}

}  // namespace everglow::proof
