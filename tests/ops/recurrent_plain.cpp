// The plain LSTM of the tests: one row of the batch after the other, sums from left to right.
#include "ops/recurrent_plain.hpp"

#include <cmath>

namespace everglow::test {
namespace {

float at(const HostTensor& tensor, std::int64_t i) { return tensor.const_view().given() ? static_cast<float>(tensor.at(i)) : 0.0F; }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// One row of the batch in one direction.
struct Plain {
  const RecurrentProblem& p;
  RecurrentResult& r;
  std::int64_t direction, row;
  std::int64_t inputs = p.description.inputs, hidden = p.description.hidden, width = p.description.directions() * hidden;
  std::int64_t length = p.length(row);
  const HostWeights& w = p.weights[static_cast<std::size_t>(direction)];
  std::vector<float> gates = std::vector<float>(static_cast<std::size_t>(4 * length * hidden));
  std::vector<float> cells = std::vector<float>(static_cast<std::size_t>((length + 1) * hidden));  // [0] is c0

  std::int64_t place(std::int64_t s) const { return (direction == 0 ? s : length - 1 - s) * p.sizes.batch + row; }
  std::int64_t state(std::int64_t j) const { return (direction * p.sizes.batch + row) * hidden + j; }
  float& gate(std::int64_t s, std::int64_t q, std::int64_t j) { return gates[static_cast<std::size_t>((s * 4 + q) * hidden + j)]; }
  float& cell(std::int64_t s, std::int64_t j) { return cells[static_cast<std::size_t>(s * hidden + j)]; }
  float before(std::int64_t s, std::int64_t j) const {
    return s == 0 ? at(p.h0, state(j)) : at(r.y, place(s - 1) * width + direction * hidden + j);
  }

  void forward() {
    for (std::int64_t j = 0; j < hidden; ++j) cell(0, j) = at(p.c0, state(j));
    for (std::int64_t s = 0; s < length; ++s) {
      for (std::int64_t n = 0; n < 4 * hidden; ++n) {
        float sum = at(w.b_ih, n) + at(w.b_hh, n);
        for (std::int64_t i = 0; i < inputs; ++i) sum += at(w.w_ih, n * inputs + i) * at(p.x, place(s) * inputs + i);
        for (std::int64_t j = 0; j < hidden; ++j) sum += at(w.w_hh, n * hidden + j) * before(s, j);
        gate(s, n / hidden, n % hidden) = n / hidden == 2 ? std::tanh(sum) : sigmoid(sum);
      }
      for (std::int64_t j = 0; j < hidden; ++j) {
        cell(s + 1, j) = gate(s, 1, j) * cell(s, j) + gate(s, 0, j) * gate(s, 2, j);
        r.y.put(place(s) * width + direction * hidden + j, gate(s, 3, j) * std::tanh(cell(s + 1, j)));
      }
    }
    for (std::int64_t j = 0; j < hidden; ++j) r.hn.put(state(j), before(length, j)), r.cn.put(state(j), cell(length, j));
  }

  /// Adds to the f32 sums of the weights' gradients and of dx, in the order of the steps.
  void backward(std::vector<HostWeights>& sums, HostTensor& dx) {
    std::vector<float> dh(static_cast<std::size_t>(hidden)), dc(dh), dz(4 * dh.size());
    for (std::int64_t j = 0; j < hidden; ++j) dh[j] = at(p.dhn, state(j)), dc[j] = at(p.dcn, state(j));
    HostWeights& g = sums[static_cast<std::size_t>(direction)];
    const auto add = [](HostTensor& to, std::int64_t i, float value) {
      if (to.const_view().given()) to.put(i, at(to, i) + value);
    };
    for (std::int64_t s = length - 1; s >= 0; --s) {
      for (std::int64_t j = 0; j < hidden; ++j) {
        const float i = gate(s, 0, j), f = gate(s, 1, j), c = gate(s, 2, j), o = gate(s, 3, j),
                    squashed = std::tanh(cell(s + 1, j));
        const float d = dh[j] + at(p.dy, place(s) * width + direction * hidden + j);
        const float e = dc[j] + d * o * (1 - squashed * squashed);
        dz[j] = e * c * i * (1 - i), dz[hidden + j] = e * cell(s, j) * f * (1 - f);
        dz[2 * hidden + j] = e * i * (1 - c * c), dz[3 * hidden + j] = d * squashed * o * (1 - o);
        dc[j] = e * f;
      }
      for (std::int64_t j = 0; j < hidden; ++j) {
        dh[j] = 0;
        for (std::int64_t n = 0; n < 4 * hidden; ++n) dh[j] += dz[n] * at(w.w_hh, n * hidden + j);
      }
      for (std::int64_t n = 0; n < 4 * hidden; ++n) {
        add(g.b_ih, n, dz[n]), add(g.b_hh, n, dz[n]);
        for (std::int64_t j = 0; j < hidden; ++j) add(g.w_hh, n * hidden + j, dz[n] * before(s, j));
        for (std::int64_t i = 0; i < inputs; ++i) {
          add(g.w_ih, n * inputs + i, dz[n] * at(p.x, place(s) * inputs + i));
          add(dx, place(s) * inputs + i, dz[n] * at(w.w_ih, n * inputs + i));
        }
      }
    }
    for (std::int64_t j = 0; j < hidden; ++j) r.dh0.put(state(j), dh[j]), r.dc0.put(state(j), dc[j]);
  }
};

HostTensor zeros_like(const HostTensor& tensor) {
  const ConstTensorView view = tensor.const_view();
  if (!view.given()) return {};
  HostTensor out(DType::f32, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  out.fill(0);
  return out;
}

}  // namespace

RecurrentResult plain_lstm(const RecurrentProblem& p) {
  RecurrentResult r = blank_result(p, RecurrentPlan(p.description, p.sizes));
  r.y.fill(0);
  std::vector<HostWeights> sums;
  for (const HostWeights& g : r.dweights)
    sums.push_back({zeros_like(g.w_ih), zeros_like(g.w_hh), zeros_like(g.b_ih), zeros_like(g.b_hh)});
  HostTensor dx = zeros_like(r.dx);
  for (std::int64_t direction = 0; direction < p.description.directions(); ++direction)
    for (std::int64_t b = 0; b < p.sizes.batch; ++b) {
      Plain plain{p, r, direction, b};
      plain.forward();
      if (p.description.training) plain.backward(sums, dx);
    }
  if (!p.description.training) return r;
  r.dx.set(dx.values());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto copy = [](HostTensor& to, const HostTensor& from) {
      if (to.const_view().given()) to.set(from.values());
    };
    copy(r.dweights[i].w_ih, sums[i].w_ih), copy(r.dweights[i].w_hh, sums[i].w_hh);
    copy(r.dweights[i].b_ih, sums[i].b_ih), copy(r.dweights[i].b_hh, sums[i].b_hh);
  }
  return r;
}

}  // namespace everglow::test
