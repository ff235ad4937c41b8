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
  dropout_->run({.a = from, .b = plus, .y = to, .dropout_seed = key, .dropout_offset = use * dropout_->dropout_counters()},
                workspace, stream_);
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

Pass::Pass(const Setting& setting, const PassShape& wanted)
    : shape(wanted),
      elementwise(setting, wanted.training ? setting.model.dropout : 0,
                  2 * setting.model.hidden * wanted.batch * std::max(wanted.source_steps, wanted.target_steps)),
      encoder(setting, wanted) {
  if (wanted.decoder) decoder.emplace(setting, wanted);
  Carver counter(nullptr, setting.device.device);
  lay_out(counter);
  bytes_ = counter.bytes();
}

void Pass::lay_out(Carver& carver) {
  std::size_t bytes = std::max(elementwise.workspace_bytes(), encoder.workspace_bytes());
  if (decoder) bytes = std::max(bytes, decoder->workspace_bytes());
  const Workspace workspace = workspace_of(carver.take_bytes(bytes));
  elementwise.workspace = workspace;
  encoder.lay_out(carver, workspace);
  if (decoder) decoder->lay_out(carver, workspace);
}

void Pass::place(GrowingBlock& block, Device device) {
  void* const base = block.reserve(bytes_);
  if (base == base_) return;
  Carver carver(base, device);
  lay_out(carver);
  base_ = base;
}

std::vector<LayerChoice> Pass::choices() const {
  std::vector<LayerChoice> out;
  encoder.add_choices(out);
  if (decoder) decoder->add_choices(out);
  return out;
}

}  // namespace everglow::gnmt
