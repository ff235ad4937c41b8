// oneDNN's inner product, and its element-wise primitives for the activation, as a peer of the linear layer.
#include "bench/onednn.hpp"

#include <optional>

namespace everglow::bench {
namespace {

dnnl::algorithm algorithm_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return dnnl::algorithm::eltwise_relu;
    case Activation::gelu_tanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::gelu_erf:
      return dnnl::algorithm::eltwise_gelu_erf;
    default:
      return dnnl::algorithm::eltwise_swish;
  }
}

class InnerProduct {
 public:
  InnerProduct(const LinearDescription& d, const LinearSizes& sizes, std::shared_ptr<const LinearTensors> tensors, int threads,
               bool packed)
      : t_(std::move(tensors)), threads_(threads), packed_(packed) {
    const memory::data_type type = onednn_dtype(d.dtype);
    x_ = {{sizes.batch, d.inputs}, type, memory::format_tag::ab}, y_ = {{sizes.batch, d.outputs}, type, memory::format_tag::ab};
    const auto stored = d.layout == LinearLayout::outputs_inputs ? memory::format_tag::ab : memory::format_tag::ba;
    weight_ = {{d.outputs, d.inputs}, type, stored};
    const memory::desc any({d.outputs, d.inputs}, type, memory::format_tag::any), used = packed ? any : weight_;
    if (t_->bias >= 0) bias_ = {{d.outputs}, type, memory::format_tag::a};
    const auto forward = descriptor<dnnl::inner_product_forward>(dnnl::prop_kind::forward_training, x_, used, bias_, y_);
    const auto data = backward_descriptor<dnnl::inner_product_backward_data>(forward, x_, used, y_);
    const auto weights = backward_descriptor<dnnl::inner_product_backward_weights>(forward, x_, weight_, bias_, y_);
    forward_ = dnnl::inner_product_forward(forward), data_ = dnnl::inner_product_backward_data(data);
    weights_ = dnnl::inner_product_backward_weights(weights);
    if (packed)
      for (std::int64_t i = 0; i < t_->sets.sets(); ++i) {
        forward_weights_.push_back(packed_copy(i, forward.weights_desc()));
        data_weights_.push_back(packed_copy(i, data.weights_desc()));
      }
    if (d.activation != Activation::none) make_activation(d);
  }

  void forward(std::int64_t i) const {
    const TensorView z = t_->at(activation_ && t_->z >= 0 ? t_->z : t_->y, i);
    Arguments arguments{{DNNL_ARG_SRC, wrap(x_, t_->at(t_->x, i))}, {DNNL_ARG_DST, wrap(y_, z)}};
    arguments.emplace(DNNL_ARG_WEIGHTS, weights(forward_weights_, i));
    if (t_->bias >= 0) arguments.emplace(DNNL_ARG_BIAS, wrap(bias_, t_->at(t_->bias, i)));
    execute(forward_, arguments, threads_);
    if (activation_) execute(*activation_, {{DNNL_ARG_SRC, wrap(y_, z)}, {DNNL_ARG_DST, wrap(y_, t_->at(t_->y, i))}}, threads_);
  }

  void backward(std::int64_t i) const {
    memory dy = wrap(y_, t_->at(t_->dy, i));
    if (gradient_) {
      execute(*gradient_, {{DNNL_ARG_SRC, wrap(y_, t_->at(t_->z, i))}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dz_}},
              threads_);
      dy = dz_;
    }
    execute(
        data_,
        {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, weights(data_weights_, i)}, {DNNL_ARG_DIFF_SRC, wrap(x_, t_->at(t_->dx, i))}},
        threads_);
    Arguments arguments{{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_SRC, wrap(x_, t_->at(t_->x, i))}};
    arguments.emplace(DNNL_ARG_DIFF_WEIGHTS, wrap(weight_, t_->at(t_->dweight, i)));
    if (t_->dbias >= 0) arguments.emplace(DNNL_ARG_DIFF_BIAS, wrap(bias_, t_->at(t_->dbias, i)));
    execute(weights_, arguments, threads_);
  }

 private:
  memory weights(const std::vector<memory>& copies, std::int64_t i) const {
    return packed_ ? copies[static_cast<std::size_t>(i)] : wrap(weight_, t_->at(t_->weight, i));
  }
  memory packed_copy(std::int64_t i, const memory::desc& packed) const {
    memory out(packed, onednn_engine());
    reorder(wrap(weight_, t_->at(t_->weight, i)), out, threads_);
    return out;
  }
  void make_activation(const LinearDescription& d) {
    const dnnl::algorithm algorithm = algorithm_of(d.activation);
    const float alpha = d.activation == Activation::silu ? 1.0F : 0.0F;
#if DNNL_VERSION_MAJOR >= 3
    const auto forward = descriptor<dnnl::eltwise_forward>(dnnl::prop_kind::forward_training, algorithm, y_, y_, alpha, 0.0F);
    gradient_ = dnnl::eltwise_backward(backward_descriptor<dnnl::eltwise_backward>(forward, algorithm, y_, y_, y_, alpha, 0.0F));
#else
    const auto forward = descriptor<dnnl::eltwise_forward>(dnnl::prop_kind::forward_training, algorithm, y_, alpha, 0.0F);
    gradient_ = dnnl::eltwise_backward(backward_descriptor<dnnl::eltwise_backward>(forward, algorithm, y_, y_, alpha, 0.0F));
#endif
    activation_ = dnnl::eltwise_forward(forward);
    dz_ = memory(y_, onednn_engine());
  }

  std::shared_ptr<const LinearTensors> t_;
  int threads_;
  bool packed_;
  memory::desc x_, y_, weight_, bias_;
  dnnl::inner_product_forward forward_;
  dnnl::inner_product_backward_data data_;
  dnnl::inner_product_backward_weights weights_;
  std::optional<dnnl::eltwise_forward> activation_;
  std::optional<dnnl::eltwise_backward> gradient_;
  memory dz_;
  std::vector<memory> forward_weights_, data_weights_;  // of each set
};

}  // namespace

std::vector<Row> onednn_linear(const LinearDescription& description, const LinearSizes& sizes,
                               const std::shared_ptr<const LinearTensors>& tensors, int threads) {
  if (description.dtype == DType::f64 || sizes.batch == 0 || description.inputs == 0 || description.outputs == 0) return {};
  if (!tensors->at(tensors->y, 0).dense() || !tensors->at(tensors->x, 0).dense()) return {};
  omp_set_num_threads(threads);  // primitives are cut for the team that is there when they are made
  return implemented([&](bool packed) -> Row {
    const auto peer = std::make_shared<const InnerProduct>(description, sizes, tensors, threads, packed);
    const auto forward = [peer](std::int64_t i) { peer->forward(i); };
    const auto backward = [peer](std::int64_t i) { peer->backward(i); };
    Row row{packed ? "peer.onednn_packed" : "peer.onednn", tensors->sets.sets(), {{{}, forward}}};
    if (tensors->training) row.passes.push_back({forward, backward});
    return row;
  });
}

}  // namespace everglow::bench
