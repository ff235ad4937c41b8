// The encoder: embedding, a bidirectional LSTM, LSTMs above it, and the keys and values that the decoder attends to.
#include "model_pass.hpp"

#include <algorithm>
#include <string>

namespace everglow::gnmt {
namespace {

std::int64_t inputs_of(std::int64_t layer, std::int64_t hidden) { return layer == 1 ? 2 * hidden : hidden; }

LinearDescription linear_description(const ModelDescription& model, std::int64_t inputs, std::int64_t outputs, bool training) {
  return {.inputs = inputs, .outputs = outputs, .dtype = model.dtype, .training = training};
}

}  // namespace

Encoder::Encoder(const Setting& setting, const PassShape& shape)
    : setting_(&setting),
      shape_(shape),
      embedding_({.vocabulary = setting.model.vocabulary,
                  .width = setting.model.hidden,
                  .dtype = setting.model.dtype,
                  .padding_index = pad_id},
                 {shape.source_steps * shape.batch}, setting.device, setting.options),
      key_value_plan_(linear_description(setting.model, setting.model.hidden, 2 * setting.model.hidden, shape.training),
                      {shape.source_steps * shape.batch}, setting.device, setting.options) {
  const std::int64_t H = setting.model.hidden;
  for (std::int64_t l = 0; l < setting.model.layers; ++l) {
    RecurrentDescription description = lstm_description(setting.model, inputs_of(l, H), shape.training);
    description.bidirectional = l == 0;
    description.lengths = true;
    layers_.push_back({.plan = RecurrentPlan(description, {shape.source_steps, shape.batch}, setting.device, setting.options)});
  }
  if (setting.model.layers == 1)
    projection_.emplace(linear_description(setting.model, 2 * H, H, shape.training), LinearSizes{shape.source_steps * shape.batch},
                        setting.device, setting.options);
}

std::size_t Encoder::workspace_bytes() const {
  std::size_t bytes = std::max(embedding_.workspace_bytes(), key_value_plan_.workspace_bytes());
  for (const Layer& layer : layers_) bytes = std::max(bytes, layer.plan.workspace_bytes());
  return projection_ ? std::max(bytes, projection_->workspace_bytes()) : bytes;
}

void Encoder::lay_out(Carver& carver, const PassInputs& inputs, const Workspace& workspace) {
  workspace_ = workspace;
  source = inputs.source, lengths = inputs.lengths;
  const std::int64_t S = shape_.source_steps, B = shape_.batch, H = setting_->model.hidden;
  const DType dtype = setting_->model.dtype;
  embedded_ = carver.take(dtype, {S, B, H});
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const TensorView below = l == 0 ? embedded_ : layers_[l - 1].sum;
    layer.input = l > 0 && dropped() ? carver.take(dtype, {S, B, below.size(2)}) : below;
    layer.output = carver.take(dtype, {S, B, l == 0 ? 2 * H : H});
    layer.sum = residual(l) ? carver.take(dtype, {S, B, H}) : layer.output;
    if (shape_.training) layer.reserve = carver.take_bytes(layer.plan.reserve_bytes());
  }
  top_ = projection_ ? carver.take(dtype, {S, B, H}) : layers_.back().sum;
  key_value = carver.take(dtype, {S, B, 2 * H});
  if (!shape_.training) return;
  key_value_gradient = carver.take(dtype, {S, B, 2 * H});
  gradient_ = carver.take(dtype, {S, B, H});
  inner_ = carver.take(dtype, {S, B, H});
  wide_ = carver.take(dtype, {S, B, 2 * H});
}

void Encoder::forward(const Elementwise& elementwise) const {
  const Weights& parameters = *setting_->parameters;
  const Stream& stream = setting_->stream;
  embedding_.forward({.indices = source, .table = parameters.embedding, .y = embedded_}, workspace_, stream);
  if (dropped()) elementwise.drop(embedded_, embedded_, {}, 0);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    if (l > 0 && dropped()) elementwise.drop(layer.input, layers_[l - 1].sum, {}, l);
    layer.plan.forward({.x = layer.input,
                        .weights = parameters.encoder[l].values,
                        .y = layer.output,
                        .reserve = layer.reserve,
                        .lengths = lengths},
                       workspace_, stream);
    if (residual(l)) elementwise.add(layer.sum, layer.output, layers_[l - 1].sum);
  }
  const LinearWeights& projection = parameters.projection;
  if (projection_)
    projection_->forward({.x = layers_[0].output, .weight = projection.weight, .bias = projection.bias, .y = top_}, workspace_,
                         stream);
  key_value_plan_.forward({.x = top_, .weight = parameters.key_value.weight, .y = key_value}, workspace_, stream);
}

void Encoder::backward_layer(const Layer& layer, std::size_t index, const TensorView& dy, const TensorView& dx) const {
  const LstmWeights& weights = setting_->parameters->encoder[index];
  layer.plan.backward({.x = layer.input,
                       .weights = weights.values,
                       .y = layer.output,
                       .reserve = layer.reserve,
                       .lengths = lengths,
                       .dy = dy,
                       .dx = dx,
                       .dweights = weights.gradients},
                      workspace_, setting_->stream);
}

void Encoder::backward(const Elementwise& elementwise) const {
  const Weights& parameters = *setting_->parameters;
  const Stream& stream = setting_->stream;
  key_value_plan_.backward({.dy = key_value_gradient,
                            .x = top_,
                            .weight = parameters.key_value.weight,
                            .dx = gradient_,
                            .dweight = parameters.key_value.weight_gradient},
                           workspace_, stream);
  for (std::size_t l = layers_.size() - 1; l >= 1; --l) {
    const TensorView& inner = l == 1 ? wide_ : inner_;
    backward_layer(layers_[l], l, gradient_, inner);
    if (residual(l) && dropped()) elementwise.drop(gradient_, inner, gradient_, l);
    if (residual(l) && !dropped()) elementwise.add(gradient_, inner, gradient_);
    if (!residual(l) && dropped()) elementwise.drop(inner, inner, {}, l);
  }
  const LinearWeights& projection = parameters.projection;
  if (projection_)
    projection_->backward({.dy = gradient_,
                           .x = layers_[0].output,
                           .weight = projection.weight,
                           .dx = wide_,
                           .dweight = projection.weight_gradient,
                           .dbias = projection.bias_gradient},
                          workspace_, stream);
  backward_layer(layers_[0], 0, wide_, gradient_);
  if (dropped()) elementwise.drop(gradient_, gradient_, {}, 0);
  embedding_.backward({.indices = source, .dy = gradient_, .dtable = parameters.embedding_gradient, .accumulate = true}, workspace_,
                      stream);
}

void Encoder::add_choices(std::vector<LayerChoice>& choices) const {
  const std::string H = std::to_string(setting_->model.hidden), wide = std::to_string(2 * setting_->model.hidden);
  choices.push_back({"embedding (" + std::to_string(setting_->model.vocabulary) + " x " + H + ")", embedding_.explain()});
  for (std::size_t l = 0; l < layers_.size(); ++l)
    choices.push_back(
        {"encoder " + std::to_string(l) + " (recurrent " + (l == 1 ? wide : H) + " -> " + H + (l == 0 ? ", both ways)" : ")"),
         layers_[l].plan.explain()});
  if (projection_) choices.push_back({"projection (linear " + wide + " -> " + H + ")", projection_->explain()});
  choices.push_back({"keys and values (linear " + H + " -> " + wide + ")", key_value_plan_.explain()});
}

}  // namespace everglow::gnmt
