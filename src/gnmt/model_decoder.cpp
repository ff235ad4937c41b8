// The decoder over a whole target: embedding, LSTMs, attention from the first one's outputs, and the classifier's loss.
#include "model_pass.hpp"

#include <algorithm>
#include <string>

namespace everglow::gnmt {

Decoder::Decoder(const Setting& setting, const PassShape& shape)
    : setting_(&setting),
      shape_(shape),
      embedding_({.vocabulary = setting.model.vocabulary,
                  .width = setting.model.hidden,
                  .dtype = setting.model.dtype,
                  .padding_index = pad_id},
                 {shape.target_steps * shape.batch}, setting.device, setting.options),
      query_plan_({.inputs = setting.model.hidden,
                   .outputs = setting.model.hidden,
                   .dtype = setting.model.dtype,
                   .training = shape.training},
                  {shape.target_steps * shape.batch}, setting.device, setting.options),
      attention_(attention_description(setting.model, shape.training),
                 {.batch = shape.batch, .queries = shape.target_steps, .keys = shape.source_steps}, setting.device,
                 setting.attention_options()),
      loss_({.inputs = setting.model.layers == 1 ? 2 * setting.model.hidden : setting.model.hidden,
             .classes = setting.model.vocabulary,
             .dtype = setting.model.dtype,
             .smoothing = setting.model.label_smoothing,
             .ignore_index = pad_id,
             .training = shape.training},
            {shape.target_steps * shape.batch}, setting.device, setting.options) {
  const std::int64_t H = setting.model.hidden;
  for (std::int64_t l = 0; l < setting.model.layers; ++l)
    layers_.push_back({.plan = RecurrentPlan(lstm_description(setting.model, l == 0 ? H : 2 * H, shape.training),
                                             {shape.target_steps, shape.batch}, setting.device, setting.options)});
}

std::size_t Decoder::workspace_bytes() const {
  std::size_t bytes = std::max(
      {embedding_.workspace_bytes(), query_plan_.workspace_bytes(), attention_.workspace_bytes(), loss_.workspace_bytes()});
  for (const Layer& layer : layers_) bytes = std::max(bytes, layer.plan.workspace_bytes());
  return bytes;
}

/// Where a layer's result lies: in the first half of what the next one reads, unless dropout makes that another tensor.
TensorView Decoder::place_of_sum(Carver& carver, std::size_t layer) const {
  const bool next_reads_it = single() || (layer + 1 < layers_.size() && !dropped());
  if (next_reads_it) return below(layer == 0 ? joined_ : layers_[layer + 1].input);
  return carver.take(setting_->model.dtype, {shape_.target_steps, shape_.batch, setting_->model.hidden});
}

void Decoder::lay_out(Carver& carver, const PassInputs& inputs, const Workspace& workspace) {
  workspace_ = workspace;
  input = inputs.decoder, targets = inputs.targets;
  const ModelDescription& model = setting_->model;
  const std::int64_t T = shape_.target_steps, B = shape_.batch, H = model.hidden;
  const DType real = model.dtype;
  embedded_ = carver.take(real, {T, B, H});
  joined_ = carver.take(real, {T, B, 2 * H});
  for (std::size_t l = 0; l < layers_.size(); ++l)
    layers_[l].input = l == 0 ? embedded_ : l == 1 ? joined_ : carver.take(real, {T, B, 2 * H});
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].sum = place_of_sum(carver, l);
    layers_[l].output = residual(l) ? carver.take(real, {T, B, H}) : layers_[l].sum;
    if (shape_.training) layers_[l].reserve = carver.take_bytes(layers_[l].plan.reserve_bytes());
  }
  top_ = single() ? joined_ : layers_.back().sum;
  query = carver.take(real, {T, B, H});
  lse = carver.take(master_type(real), {B, model.heads(), T});
  if (!shape_.training) return;
  gradient_ = carver.take(real, {T, B, H});
  query_gradient_ = carver.take(real, {T, B, H});
  wide_ = carver.take(real, {T, B, 2 * H});
  if (layers_.size() > 2) other_wide_ = carver.take(real, {T, B, 2 * H});
}

void Decoder::attend(const Encoder& encoder) const {
  const ModelDescription& model = setting_->model;
  query_plan_.forward({.x = layers_[0].output, .weight = setting_->parameters->query.weight, .y = query}, workspace_,
                      setting_->stream);
  attention_.forward({.q = by_heads(query, model),
                      .k = keys_of(encoder.key_value, model),
                      .v = values_of(encoder.key_value, model),
                      .o = by_heads(context(joined_), model),
                      .lse = lse,
                      .key_lengths = encoder.lengths},
                     workspace_, setting_->stream);
}

void Decoder::forward(const Elementwise& elementwise, const Encoder& encoder) const {
  const Weights& parameters = *setting_->parameters;
  const std::uint64_t first_use = layers_.size();  // the encoder's uses of dropout come before
  embedding_.forward({.indices = input, .table = parameters.embedding, .y = embedded_}, workspace_, setting_->stream);
  if (dropped()) elementwise.drop(embedded_, embedded_, {}, first_use);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    if (l > 0 && dropped()) elementwise.drop(below(layer.input), layers_[l - 1].sum, {}, first_use + l);
    if (l > 1) elementwise.copy(context(layer.input), context(joined_));
    layer.plan.forward({.x = layer.input, .weights = parameters.decoder[l].values, .y = layer.output, .reserve = layer.reserve},
                       workspace_, setting_->stream);
    if (residual(l)) elementwise.add(layer.sum, layer.output, layers_[l - 1].sum);
    if (l == 0) attend(encoder);
  }
}

LossForward Decoder::loss_tensors() const {
  const std::int64_t rows = shape_.target_steps * shape_.batch;
  const LinearWeights& classifier = setting_->parameters->classifier;
  return {.x = top_.reshaped({rows, top_.size(2)}),
          .weight = classifier.weight,
          .bias = classifier.bias,
          .targets = targets.reshaped({rows}),
          .loss = setting_->scalars->loss,
          .count = setting_->scalars->count};
}

void Decoder::loss() const { loss_.forward(loss_tensors(), workspace_, setting_->stream); }

void Decoder::backward_layer(const Layer& layer, std::size_t index, const TensorView& dy, const TensorView& dx) const {
  const LstmWeights& weights = setting_->parameters->decoder[index];
  layer.plan.backward({.x = layer.input,
                       .weights = weights.values,
                       .y = layer.output,
                       .reserve = layer.reserve,
                       .dy = dy,
                       .dx = dx,
                       .dweights = weights.gradients},
                      workspace_, setting_->stream);
}

/// From the sum of the context's gradients to those of queries, keys and values, and on to the first layer's outputs (gradient_).
void Decoder::backward_attention(const Encoder& encoder) const {
  const ModelDescription& model = setting_->model;
  const LinearWeights& weights = setting_->parameters->query;
  attention_.backward({.q = by_heads(query, model),
                       .k = keys_of(encoder.key_value, model),
                       .v = values_of(encoder.key_value, model),
                       .o = by_heads(context(joined_), model),
                       .lse = lse,
                       .key_lengths = encoder.lengths,
                       .d_o = by_heads(context(wide_), model),
                       .dq = by_heads(query_gradient_, model),
                       .dk = keys_of(encoder.key_value_gradient, model),
                       .dv = values_of(encoder.key_value_gradient, model)},
                      workspace_, setting_->stream);
  query_plan_.backward({.dy = query_gradient_,
                        .x = layers_[0].output,
                        .weight = weights.weight,
                        .dx = gradient_,
                        .dweight = weights.weight_gradient},
                       workspace_, setting_->stream);
}

void Decoder::backward(const Elementwise& elementwise, const Encoder& encoder) const {
  const Weights& parameters = *setting_->parameters;
  const std::uint64_t first_use = layers_.size();
  const TensorView& top = single() ? wide_ : gradient_;
  loss_.forward_backward({.forward = loss_tensors(),
                          .scale = setting_->scales_loss() ? setting_->scalars->scaler.narrow(0, 0, 1) : TensorView(),
                          .dx = top.reshaped({shape_.target_steps * shape_.batch, top.size(2)}),
                          .dweight = parameters.classifier.weight_gradient,
                          .dbias = parameters.classifier.bias_gradient},
                         workspace_, setting_->stream);
  TensorView first = below(wide_);  // the gradient of what the second layer (or the classifier) read of the first
  for (std::size_t l = layers_.size() - 1; l >= 1; --l) {
    const bool highest = l + 1 == layers_.size();
    const TensorView& inner = highest ? wide_ : other_wide_;
    backward_layer(layers_[l], l, gradient_, inner);
    if (!highest) elementwise.add(context(wide_), context(wide_), context(inner));
    if (residual(l) && dropped()) elementwise.drop(gradient_, below(inner), gradient_, first_use + l);
    if (residual(l) && !dropped()) elementwise.add(gradient_, below(inner), gradient_);
    first = below(inner);
  }
  backward_attention(encoder);
  if (dropped() && !single())
    elementwise.drop(gradient_, first, gradient_, first_use + 1);
  else
    elementwise.add(gradient_, first, gradient_);
  backward_layer(layers_[0], 0, gradient_, query_gradient_);
  if (dropped()) elementwise.drop(query_gradient_, query_gradient_, {}, first_use);
  embedding_.backward({.indices = input, .dy = query_gradient_, .dtable = parameters.embedding_gradient}, workspace_,
                      setting_->stream);
}

void Decoder::add_choices(std::vector<LayerChoice>& choices) const {
  const std::string H = std::to_string(setting_->model.hidden), wide = std::to_string(2 * setting_->model.hidden);
  for (std::size_t l = 0; l < layers_.size(); ++l)
    choices.push_back(
        {"decoder " + std::to_string(l) + " (recurrent " + (l == 0 ? H : wide) + " -> " + H + ")", layers_[l].plan.explain()});
  choices.push_back({"queries (linear " + H + " -> " + H + ")", query_plan_.explain()});
  choices.push_back({"attention (" + std::to_string(setting_->model.heads()) + " heads of " +
                         std::to_string(setting_->model.hidden / setting_->model.heads()) + ")",
                     attention_.explain()});
  choices.push_back({"classifier and loss (" + (single() ? wide : H) + " -> " + std::to_string(setting_->model.vocabulary) + ")",
                     loss_.explain()});
}

}  // namespace everglow::gnmt
