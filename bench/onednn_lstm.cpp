// oneDNN's LSTM as a peer of the recurrent layer. Its weights are in an order of its own: one row puts them into it, and their
// gradients out of it, in each run, as training must; the other has it done ahead. Its cell state and its one bias are f32; both
// are 0 here, and the time does not depend on their values.
#include "bench/onednn.hpp"

#include <algorithm>

namespace everglow::bench {
namespace {

struct Packed {
  memory ih, hh;
};

class Lstm {
 public:
  Lstm(const RecurrentDescription& d, const RecurrentSizes& sizes, std::shared_ptr<const RecurrentTensors> tensors, int threads,
       bool packed)
      : t_(std::move(tensors)), threads_(threads), packed_(packed) {
    using tag = memory::format_tag;
    const auto type = onednn_dtype(d.dtype), f32 = memory::data_type::f32;
    const memory::dims ih{1, 1, d.inputs, 4, d.hidden}, hh{1, 1, d.hidden, 4, d.hidden};
    x_ = {{sizes.steps, sizes.batch, d.inputs}, type, tag::tnc}, y_ = {{sizes.steps, sizes.batch, d.hidden}, type, tag::tnc};
    h_ = {{1, 1, sizes.batch, d.hidden}, type, tag::ldnc}, c_ = {{1, 1, sizes.batch, d.hidden}, f32, tag::ldnc};
    bias_ = {{1, 1, 4, d.hidden}, f32, tag::ldgo};
    w_ih_ = {ih, type, tag::ldgoi}, w_hh_ = {hh, type, tag::ldgoi};  // torch's [4H, I] and [4H, H]
    const memory::desc any_ih(ih, type, tag::any), any_hh(hh, type, tag::any);
    const auto prop = t_->training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto direction = dnnl::rnn_direction::unidirectional_left2right;
    const auto forward = descriptor<dnnl::lstm_forward>(prop, direction, x_, h_, c_, any_ih, any_hh, bias_, y_, h_, c_);
    forward_ = dnnl::lstm_forward(forward);
    forward_weights_ = copies(forward.weights_layer_desc(), forward.weights_iter_desc());
    for (memory* state : {&c0_, &cn_, &dcn_, &dc0_}) *state = zeros(c_);
    bias_sum_ = zeros(bias_);
    if (t_->training) make_backward(forward, d, sizes);
    for (std::int64_t i = 0; packed && i < t_->sets.sets(); ++i) {
      pack(forward_weights_, i);
      if (t_->training) pack(backward_weights_, i);
    }
  }

  void forward(std::int64_t i) {
    if (!packed_) pack(forward_weights_, i);
    execute(forward_, tensors(i, copy_of(forward_weights_, i)), threads_);
  }

  void backward(std::int64_t i) {
    if (!packed_) pack(backward_weights_, i);
    Arguments a = tensors(i, copy_of(backward_weights_, i));
    a.insert({{DNNL_ARG_DIFF_DST_LAYER, own_dy_ ? own_dy_ : wrap(dy_, t_->at(t_->dy, i))},
              {DNNL_ARG_DIFF_DST_ITER, dhn_},
              {DNNL_ARG_DIFF_DST_ITER_C, dcn_},
              {DNNL_ARG_DIFF_SRC_LAYER, own_dx_ ? own_dx_ : wrap(dx_, t_->at(t_->dx, i))},
              {DNNL_ARG_DIFF_SRC_ITER, dh0_},
              {DNNL_ARG_DIFF_SRC_ITER_C, dc0_},
              {DNNL_ARG_DIFF_WEIGHTS_LAYER, diff_ih_},
              {DNNL_ARG_DIFF_WEIGHTS_ITER, diff_hh_},
              {DNNL_ARG_DIFF_BIAS, diff_bias_}});
    for (const memory* sum : {&diff_ih_, &diff_hh_, &diff_bias_})  // the primitive adds into them
      std::fill_n(static_cast<std::byte*>(sum->get_data_handle()), sum->get_desc().get_size(), std::byte{});
    execute(backward_, a, threads_);
    if (packed_) return;
    reorder(diff_ih_, wrap(w_ih_, t_->at(t_->dweights[0].w_ih, i)), threads_);
    reorder(diff_hh_, wrap(w_hh_, t_->at(t_->dweights[0].w_hh, i)), threads_);
  }

 private:
  static memory zeros(const memory::desc& description) {
    memory out(description, onednn_engine());
    std::fill_n(static_cast<std::byte*>(out.get_data_handle()), description.get_size(), std::byte{});
    return out;
  }
  void make_backward(const dnnl::lstm_forward::primitive_desc& forward, const RecurrentDescription& d,
                     const RecurrentSizes& sizes) {
    using tag = memory::format_tag;
    const auto type = onednn_dtype(d.dtype), f32 = memory::data_type::f32;
    const memory::dims ih{1, 1, d.inputs, 4, d.hidden}, hh{1, 1, d.hidden, 4, d.hidden};
    const memory::desc any_ih(ih, type, tag::any), any_hh(hh, type, tag::any), sum_ih(ih, f32, tag::any), sum_hh(hh, f32, tag::any);
    dx_ = {{sizes.steps, sizes.batch, d.inputs}, f32, tag::tnc}, dy_ = {{sizes.steps, sizes.batch, d.hidden}, f32, tag::tnc};
    dh_ = {{1, 1, sizes.batch, d.hidden}, f32, tag::ldnc};
    const auto backward = backward_descriptor<dnnl::lstm_backward>(
        forward, dnnl::prop_kind::backward, dnnl::rnn_direction::unidirectional_left2right, x_, h_, c_, any_ih, any_hh, bias_, y_,
        h_, c_, dx_, dh_, c_, sum_ih, sum_hh, bias_, dy_, dh_, c_);
    backward_ = dnnl::lstm_backward(backward);
    backward_weights_ = copies(backward.weights_layer_desc(), backward.weights_iter_desc());
    diff_ih_ = zeros(backward.diff_weights_layer_desc()), diff_hh_ = zeros(backward.diff_weights_iter_desc());
    diff_bias_ = zeros(bias_);
    workspace_ = zeros(forward.workspace_desc());
    dhn_ = zeros(dh_), dh0_ = zeros(dh_);
    if (d.dtype != DType::f32) own_dx_ = zeros(dx_), own_dy_ = zeros(dy_);
  }
  /// Memory for weights in the order that a primitive likes: of every set where they are packed ahead, else of the run at hand.
  std::vector<Packed> copies(const memory::desc& ih, const memory::desc& hh) const {
    std::vector<Packed> out;
    for (std::int64_t i = 0; i < (packed_ ? t_->sets.sets() : 1); ++i)
      out.push_back({memory(ih, onednn_engine()), memory(hh, onednn_engine())});
    return out;
  }
  const Packed& copy_of(const std::vector<Packed>& all, std::int64_t i) const {
    return all[packed_ ? static_cast<std::size_t>(i) : 0];
  }
  void pack(const std::vector<Packed>& all, std::int64_t i) const {
    reorder(wrap(w_ih_, t_->at(t_->weights[0].w_ih, i)), copy_of(all, i).ih, threads_);
    reorder(wrap(w_hh_, t_->at(t_->weights[0].w_hh, i)), copy_of(all, i).hh, threads_);
  }
  Arguments tensors(std::int64_t i, const Packed& weights) const {
    Arguments out{{DNNL_ARG_SRC_LAYER, wrap(x_, t_->at(t_->x, i))},
                  {DNNL_ARG_SRC_ITER, wrap(h_, t_->at(t_->h0, i))},
                  {DNNL_ARG_SRC_ITER_C, c0_},
                  {DNNL_ARG_WEIGHTS_LAYER, weights.ih},
                  {DNNL_ARG_WEIGHTS_ITER, weights.hh},
                  {DNNL_ARG_BIAS, bias_sum_},
                  {DNNL_ARG_DST_LAYER, wrap(y_, t_->at(t_->y, i))},
                  {DNNL_ARG_DST_ITER, wrap(h_, t_->at(t_->hn, i))},
                  {DNNL_ARG_DST_ITER_C, cn_}};
    if (t_->training) out.emplace(DNNL_ARG_WORKSPACE, workspace_);
    return out;
  }

  std::shared_ptr<const RecurrentTensors> t_;
  int threads_;
  bool packed_;
  memory::desc x_, y_, h_, c_, bias_, w_ih_, w_hh_, dx_, dy_, dh_;
  dnnl::lstm_forward forward_;
  dnnl::lstm_backward backward_;
  std::vector<Packed> forward_weights_, backward_weights_;
  memory diff_ih_, diff_hh_, diff_bias_, workspace_;
  memory c0_, cn_, dcn_, dc0_, bias_sum_, dhn_, dh0_;
  memory own_dx_, own_dy_;  // where the tensors are not f32, which oneDNN wants of gradients
};

}  // namespace

std::vector<Row> onednn_lstm(const RecurrentDescription& description, const RecurrentSizes& sizes,
                             const std::shared_ptr<const RecurrentTensors>& tensors, int threads) {
  const RecurrentDescription& d = description;
  const bool empty = sizes.steps == 0 || sizes.batch == 0 || d.inputs == 0 || d.hidden == 0;
  const bool other = d.bidirectional || d.layers != 1 || d.projection > 0 || d.lengths || d.resets || d.dtype == DType::f64;
  if (d.cell != Cell::lstm || other || empty) return {};
  omp_set_num_threads(threads);  // primitives are cut for the team that is there when they are made
  return implemented([&](bool packed) -> Row {
    const auto peer = std::make_shared<Lstm>(description, sizes, tensors, threads, packed);
    const auto forward = [peer](std::int64_t i) { peer->forward(i); };
    const auto backward = [peer](std::int64_t i) { peer->backward(i); };
    Row row{packed ? "peer.onednn_packed" : "peer.onednn", tensors->sets.sets(), {{{}, forward}}};
    // Its one workspace holds what the last forward left, of whichever set; the time does not depend on the values.
    if (tensors->training) row.passes.push_back({forward, backward});
    return row;
  });
}

}  // namespace everglow::bench
