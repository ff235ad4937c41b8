// Plans with tensors of their own.
#include "cli/layer_runs.hpp"

#include "bench/peers.hpp"

#include <algorithm>
#include <memory>

namespace everglow::cli {
namespace {

using Shape = std::vector<std::int64_t>;

struct Linear {
  Linear(OperandMemory& memory, const LinearDescription& d, const LinearSizes& sizes, const PlanOptions& options)
      : plan(d, sizes, Device::cpu(), options), workspace(plan.workspace_bytes(), Device::cpu()), tensors(memory) {
    const Shape in{sizes.batch, d.inputs}, out{sizes.batch, d.outputs};
    const Shape w = d.layout == LinearLayout::outputs_inputs ? Shape{d.outputs, d.inputs} : Shape{d.inputs, d.outputs};
    x = tensors.read(d.dtype, in), weight = tensors.read(d.dtype, w), bias = tensors.read(d.dtype, {d.outputs});
    dy = tensors.read(d.dtype, out);
    y = tensors.written(d.dtype, out), dx = tensors.written(d.dtype, in);
    dweight = tensors.written(d.dtype, w), dbias = tensors.written(d.dtype, {d.outputs});
    if (d.activation != Activation::none) {
      z = tensors.written(d.dtype, out);
      kept = tensors.read(d.dtype, out);
    }
    tensors.seal();
  }
  void forward(std::int64_t i) const {
    plan.forward({.x = tensors.at(x, i),
                  .weight = tensors.at(weight, i),
                  .bias = tensors.at(bias, i),
                  .y = tensors.at(y, i),
                  .preactivation = tensors.at(z, i)},
                 workspace);
  }
  void backward(std::int64_t i, bool activations, bool weights) const {
    LinearBackward b{.dy = tensors.at(dy, i), .x = tensors.at(x, i), .weight = tensors.at(weight, i)};
    b.preactivation = tensors.at(kept, i);
    if (activations) b.dx = tensors.at(dx, i);
    if (weights) b.dweight = tensors.at(dweight, i), b.dbias = tensors.at(dbias, i);
    plan.backward(b, workspace);
  }
  LinearPlan plan;
  Buffer workspace;
  Operands tensors;
  int x = -1, weight = -1, bias = -1, y = -1, z = -1, kept = -1, dy = -1, dx = -1, dweight = -1, dbias = -1;
};

struct Recurrent {
  Recurrent(OperandMemory& memory, const RecurrentDescription& description, const RecurrentSizes& sizes, const PlanOptions& options)
      : d(description),
        plan(d, sizes, Device::cpu(), options),
        workspace(plan.workspace_bytes(), Device::cpu()),
        reserve(plan.reserve_bytes(), Device::cpu()),
        whole_lengths(4 * static_cast<std::size_t>(sizes.batch), Device::cpu()),
        no_resets(static_cast<std::size_t>(sizes.steps * sizes.batch), Device::cpu()),
        tensors(memory) {
    const std::int64_t P = d.projection > 0 ? d.projection : d.hidden, G = bench::gates_of(d.cell) * d.hidden, D = d.directions();
    const Shape in{sizes.steps, sizes.batch, d.inputs}, out{sizes.steps, sizes.batch, D * P};
    x = tensors.read(d.dtype, in), dy = tensors.read(d.dtype, out);
    y = tensors.written(d.dtype, out), dx = tensors.written(d.dtype, in);
    for (std::int64_t i = 0; i < d.layers * D; ++i) {
      const std::int64_t inputs = i < D ? d.inputs : D * P;
      const auto add = [&](auto tensor) {
        bench::RecurrentNumbers w{tensor({G, inputs}), tensor({G, P}), tensor({G}), tensor({G})};
        if (d.projection > 0) w.w_hr = tensor({P, d.hidden});
        return w;
      };
      weights.push_back(add([&](Shape shape) { return tensors.read(d.dtype, std::move(shape)); }));
      if (d.training) gradients.push_back(add([&](Shape shape) { return tensors.written(d.dtype, std::move(shape)); }));
    }
    tensors.seal();
    std::fill_n(static_cast<std::int32_t*>(whole_lengths.data()), sizes.batch, static_cast<std::int32_t>(sizes.steps));
    std::fill_n(static_cast<std::uint8_t*>(no_resets.data()), no_resets.bytes(), std::uint8_t{0});
    if (d.lengths) lengths = TensorView(whole_lengths.data(), DType::i32, {sizes.batch});
    if (d.resets) resets = TensorView(no_resets.data(), DType::u8, {sizes.steps, sizes.batch});
    if (d.training) kept = TensorView(reserve.data(), DType::u8, {static_cast<std::int64_t>(reserve.bytes())});
  }
  template <class Views>
  std::vector<Views> views(const std::vector<bench::RecurrentNumbers>& all, std::int64_t i) const {
    std::vector<Views> out;
    for (const bench::RecurrentNumbers& w : all)
      out.push_back(
          {tensors.at(w.w_ih, i), tensors.at(w.w_hh, i), tensors.at(w.b_ih, i), tensors.at(w.b_hh, i), tensors.at(w.w_hr, i)});
    return out;
  }
  void forward(std::int64_t i) const {
    const auto w = views<RecurrentWeights>(weights, i);
    RecurrentForward f{.x = tensors.at(x, i), .weights = w};
    f.y = tensors.at(y, i), f.reserve = kept, f.lengths = lengths, f.resets = resets;
    plan.forward(f, workspace);
  }
  void backward(std::int64_t i) const {
    const auto w = views<RecurrentWeights>(weights, i);
    const auto dw = views<RecurrentWeightGradients>(gradients, i);
    RecurrentBackward b{.x = tensors.at(x, i), .weights = w};
    b.y = tensors.at(y, i), b.reserve = kept, b.lengths = lengths, b.resets = resets;
    b.dy = tensors.at(dy, i), b.dx = tensors.at(dx, i), b.dweights = dw;
    plan.backward(b, workspace);
  }
  RecurrentDescription d;
  RecurrentPlan plan;
  Buffer workspace, reserve, whole_lengths, no_resets;
  Operands tensors;
  std::vector<bench::RecurrentNumbers> weights, gradients;
  TensorView kept, lengths, resets;
  int x = -1, y = -1, dy = -1, dx = -1;
};

struct Attention {
  Attention(OperandMemory& memory, const AttentionDescription& d, const AttentionSizes& sizes, const PlanOptions& options)
      : plan(d, sizes, Device::cpu(), options), workspace(plan.workspace_bytes(), Device::cpu()), tensors(memory) {
    const std::int64_t kv_heads = d.kv_heads > 0 ? d.kv_heads : d.heads, value_dim = d.value_dim > 0 ? d.value_dim : d.head_dim;
    const Shape qs{sizes.batch, sizes.queries, d.heads, d.head_dim}, ks{sizes.batch, sizes.keys, kv_heads, d.head_dim};
    const Shape vs{sizes.batch, sizes.keys, kv_heads, value_dim}, os{sizes.batch, sizes.queries, d.heads, value_dim};
    const Shape rows{sizes.batch, d.heads, sizes.queries};
    q = tensors.read(d.dtype, qs), k = tensors.read(d.dtype, ks), v = tensors.read(d.dtype, vs);
    o = tensors.read(d.dtype, os), lse = tensors.read(DType::f32, rows), d_o = tensors.read(d.dtype, os);
    made_o = tensors.written(d.dtype, os), made_lse = tensors.written(DType::f32, rows);
    dq = tensors.written(d.dtype, qs), dk = tensors.written(d.dtype, ks), dv = tensors.written(d.dtype, vs);
    tensors.seal();
  }
  void forward(std::int64_t i) const {
    AttentionForward f{.q = tensors.at(q, i), .k = tensors.at(k, i), .v = tensors.at(v, i), .o = tensors.at(made_o, i)};
    f.lse = tensors.at(made_lse, i);
    plan.forward(f, workspace);
  }
  void backward(std::int64_t i) const {
    AttentionBackward b{.q = tensors.at(q, i), .k = tensors.at(k, i), .v = tensors.at(v, i), .o = tensors.at(o, i)};
    b.lse = tensors.at(lse, i), b.d_o = tensors.at(d_o, i);
    b.dq = tensors.at(dq, i), b.dk = tensors.at(dk, i), b.dv = tensors.at(dv, i);
    plan.backward(b, workspace);
  }
  AttentionPlan plan;
  Buffer workspace;
  Operands tensors;
  int q = -1, k = -1, v = -1, o = -1, lse = -1, d_o = -1, made_o = -1, made_lse = -1, dq = -1, dk = -1, dv = -1;
};

}  // namespace

std::vector<PassRun> linear_runs(OperandMemory& memory, const LinearDescription& d, const LinearSizes& sizes,
                                 const PlanOptions& options) {
  const auto layer = std::make_shared<const Linear>(memory, d, sizes, options);
  std::vector<PassRun> out{{"forward", [layer](std::int64_t i) { layer->forward(i); }}};
  if (!d.training) return out;
  if (d.activation != Activation::none) {
    out.push_back({"backward", [layer](std::int64_t i) { layer->backward(i, true, true); }});
    return out;
  }
  out.push_back({"activation_gradient", [layer](std::int64_t i) { layer->backward(i, true, false); }});
  out.push_back({"weight_gradient", [layer](std::int64_t i) { layer->backward(i, false, true); }});
  return out;
}

std::vector<PassRun> recurrent_runs(OperandMemory& memory, const RecurrentDescription& d, const RecurrentSizes& sizes,
                                    const PlanOptions& options) {
  const auto layer = std::make_shared<const Recurrent>(memory, d, sizes, options);
  std::vector<PassRun> out{{"forward", [layer](std::int64_t i) { layer->forward(i); }}};
  if (!d.training) return out;
  layer->forward(0);
  out.push_back({"backward", [layer](std::int64_t i) { layer->backward(i); }});
  return out;
}

std::vector<PassRun> attention_runs(OperandMemory& memory, const AttentionDescription& d, const AttentionSizes& sizes,
                                    const PlanOptions& options) {
  const auto layer = std::make_shared<const Attention>(memory, d, sizes, options);
  std::vector<PassRun> out{{"forward", [layer](std::int64_t i) { layer->forward(i); }}};
  if (d.training) out.push_back({"backward", [layer](std::int64_t i) { layer->backward(i); }});
  return out;
}

}  // namespace everglow::cli
