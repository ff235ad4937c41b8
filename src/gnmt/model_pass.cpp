// Elementwise operations of a pass, and where its memory lies.
#include "model_pass.hpp"

#include <algorithm>

namespace everglow::gnmt {

RecurrentDescription lstm_description(const ModelDescription& model, std::int64_t inputs, bool training) {
  return {.cell = Cell::lstm, .inputs = inputs, .hidden = model.hidden, .dtype = model.dtype, .training = training};
}

AttentionDescription attention_description(const ModelDescription& model, bool training) {
  return {.heads = model.heads(),
          .head_dim = model.hidden / model.heads(),
          .key_lengths = true,
          .dtype = model.dtype,
          .training = training};
}

Elementwise::Elementwise(const Setting& setting, float dropout, std::int64_t elements)
    : add_({.operation = Pointwise::add, .dtype = setting.model.dtype}, {elements}, setting.device, setting.options),
      copy_({.operation = Pointwise::copy, .dtype = setting.model.dtype}, {elements}, setting.device, setting.options),
      stream_(setting.stream) {
  if (dropout > 0)
    dropout_.emplace(PointwiseDescription{.operation = Pointwise::dropout, .dtype = setting.model.dtype, .dropout = dropout},
                     PointwiseSizes{elements}, setting.device, setting.options);
}

void Elementwise::drop(const TensorView& to, const ConstTensorView& from, const ConstTensorView& plus, std::uint64_t use) const {
  const TensorView state = states.narrow(0, static_cast<std::int64_t>(use), 1).reshaped({2});
  dropout_->run({.a = from, .b = plus, .y = to, .dropout_state = state}, workspace, stream_);
}

void Elementwise::add(const TensorView& to, const ConstTensorView& a, const ConstTensorView& b) const {
  add_.run({.a = a, .b = b, .y = to}, workspace, stream_);
}

void Elementwise::copy(const TensorView& to, const ConstTensorView& from) const {
  copy_.run({.a = from, .y = to}, workspace, stream_);
}

std::size_t Elementwise::workspace_bytes() const {
  return std::max({add_.workspace_bytes(), copy_.workspace_bytes(), dropout_ ? dropout_->workspace_bytes() : 0});
}

PassInputs::PassInputs(Carver& carver, const PassShape& shape, std::int64_t uses) {
  source = carver.take(DType::i32, {shape.source_steps, shape.batch});
  lengths = carver.take(DType::i32, {shape.batch});
  if (shape.decoder) {
    decoder = carver.take(DType::i32, {shape.target_steps, shape.batch});
    targets = carver.take(DType::i32, {shape.target_steps, shape.batch});
  }
  if (shape.training) dropout = carver.take(DType::i64, {uses, 2});
}

void fill_inputs(const PassInputs& inputs, const Batch& batch) {
  const std::int64_t rows = inputs.lengths.size(0), given = batch.rows;
  const auto fill = [&](const TensorView& to, const std::vector<std::int32_t>& from, std::int64_t steps) {
    auto* out = static_cast<std::int32_t*>(to.data);
    for (std::int64_t t = 0; t < steps; ++t, out += rows) {
      std::copy_n(from.data() + t * given, given, out);
      std::fill(out + given, out + rows, pad_id);
    }
    std::fill(out, static_cast<std::int32_t*>(to.data) + to.elements(), pad_id);
  };
  fill(inputs.source, batch.source, batch.source_steps);
  auto* const lengths = static_cast<std::int32_t*>(inputs.lengths.data);
  std::fill(std::copy(batch.source_lengths.begin(), batch.source_lengths.end(), lengths), lengths + rows, 0);
  if (!inputs.decoder.given()) return;
  fill(inputs.decoder, batch.decoder_input, batch.target_steps);
  fill(inputs.targets, batch.targets, batch.target_steps);
}

Pass::Pass(const Setting& setting, const PassShape& wanted)
    : shape(wanted),
      elementwise(setting, wanted.training ? setting.model.dropout : 0,
                  2 * setting.model.hidden * wanted.batch * std::max(wanted.source_steps, wanted.target_steps)),
      encoder(setting, wanted),
      uses_(dropout_uses(setting.model)) {
  if (wanted.decoder) decoder.emplace(setting, wanted);
  Carver counter(nullptr, setting.device.device);
  lay_out(counter);
  bytes_ = counter.bytes();
}

void Pass::lay_out(Carver& carver) {
  std::size_t bytes = std::max(elementwise.workspace_bytes(), encoder.workspace_bytes());
  if (decoder) bytes = std::max(bytes, decoder->workspace_bytes());
  Carver counter(nullptr, Device::cpu());
  const PassInputs counted(counter, shape, uses_);
  block = carver.take_bytes(counter.bytes());
  Carver parts(block.data, block.device);
  inputs = PassInputs(parts, shape, uses_);
  elementwise.states = inputs.dropout;
  const Workspace workspace = workspace_of(carver.take_bytes(bytes));
  elementwise.workspace = workspace;
  encoder.lay_out(carver, inputs, workspace);
  if (decoder) decoder->lay_out(carver, inputs, workspace);
}

void Pass::place(GrowingBlock& block, Device device) {
  void* const base = block.reserve(bytes_);
  if (base == base_) return;
  Carver carver(base, device);
  lay_out(carver);
  base_ = base;
  step = {}, ran = false;
}

std::vector<LayerChoice> Pass::choices() const {
  std::vector<LayerChoice> out;
  encoder.add_choices(out);
  if (decoder) decoder->add_choices(out);
  return out;
}

}  // namespace everglow::gnmt
