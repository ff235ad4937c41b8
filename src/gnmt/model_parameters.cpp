// Names, shapes, memory and first values of the model's parameters.
#include "model_parameters.hpp"

#include "model_memory.hpp"

#include <random>

namespace everglow::gnmt {
namespace {

std::string layer_name(std::string_view side, std::int64_t layer) { return std::string(side) + "." + std::to_string(layer); }

}  // namespace

std::size_t place_scalars(StepScalars& scalars, void* base, Device device, DType dtype) {
  Carver carver(base, device);
  scalars.rates = carver.take(DType::f32, {most_steps_ahead + 1});
  scalars.step = carver.take(DType::i64, {1});
  scalars.scaler = carver.take(DType::f32, {3});
  scalars.loss = carver.take(master_type(dtype), {1});
  scalars.count = carver.take(DType::f32, {1});
  scalars.norm = carver.take(DType::f32, {1});
  scalars.overflow = carver.take(DType::i32, {1});
  return carver.bytes();
}

Parameters::Parameters(const ModelDescription& description, Device device)
    : dtype_(description.dtype), master_(master_type(description.dtype)) {
  const std::int64_t H = description.hidden, V = description.vocabulary;
  declare("embedding.weight", {V, H});
  for (std::int64_t l = 0; l < description.layers; ++l) declare_lstm(layer_name("encoder", l), l == 1 ? 2 * H : H, H, l == 0);
  if (description.layers == 1) {
    declare("encoder.projection.weight", {H, 2 * H});
    declare("encoder.projection.bias", {H});
  }
  declare("attention.query", {H, H});
  declare("attention.key", {H, H});
  declare("attention.value", {H, H}, true);
  for (std::int64_t l = 0; l < description.layers; ++l) declare_lstm(layer_name("decoder", l), l == 0 ? H : 2 * H, H, false);
  declare("classifier.weight", {V, description.layers == 1 ? 2 * H : H});
  declare("classifier.bias", {V});
  allocate(device);
  weights = bind(description, true);
  masters = bind(description, false);
  clear(Stream{device});
}

/// `joined` puts the parameter right behind the one before it.
void Parameters::declare(std::string name, std::initializer_list<std::int64_t> shape, bool joined) {
  constexpr std::int64_t alignment = 16;  // elements: 64 bytes in f32
  if (!joined) elements_ = (elements_ + alignment - 1) / alignment * alignment;
  const TensorView view(nullptr, master_, shape);
  list.push_back({std::move(name), view, view, view, view});
  offsets_.push_back(elements_);
  elements_ += view.elements();
}

void Parameters::declare_lstm(const std::string& prefix, std::int64_t inputs, std::int64_t hidden, bool both_ways) {
  for (const char* way : {"", "_reverse"}) {
    if (*way != '\0' && !both_ways) return;
    declare(prefix + ".weight_ih" + way, {4 * hidden, inputs});
    declare(prefix + ".weight_hh" + way, {4 * hidden, hidden});
    declare(prefix + ".bias_ih" + way, {4 * hidden});
    declare(prefix + ".bias_hh" + way, {4 * hidden});
  }
}

void Parameters::allocate(Device device) {
  const auto block_of = [this](DType dtype) { return (static_cast<std::size_t>(elements_) * size_of(dtype) + 255) / 256 * 256; };
  const std::size_t block = block_of(master_), copied = dtype_ == master_ ? 0 : block_of(dtype_);
  memory_ = Buffer(4 * block + copied + place_scalars(scalars, nullptr, device, dtype_), device);
  auto* base = static_cast<std::byte*>(memory_.data());
  TensorView* const blocks[] = {&values, &gradients, &m, &v};
  for (std::size_t i = 0; i < 4; ++i) {
    *blocks[i] = TensorView(base + i * block, master_, {elements_}, device);
    for (std::size_t p = 0; p < list.size(); ++p) {
      TensorView* const views[] = {&list[p].value, &list[p].gradient, &list[p].m, &list[p].v};
      views[i]->device = device;
      views[i]->data = base + i * block + static_cast<std::size_t>(offsets_[p]) * size_of(master_);
    }
  }
  if (copied > 0) copies = TensorView(base + 4 * block, dtype_, {elements_}, device);
  place_scalars(scalars, base + 4 * block + copied, device, dtype_);
}

/// A parameter by name; `copied`: its value is what layers of the model's type read.
Parameter Parameters::find(std::string_view name, bool copied) const {
  for (std::size_t p = 0; p < list.size(); ++p) {
    if (list[p].name != name) continue;
    Parameter found = list[p];
    if (copied && copies.given()) {
      found.value.dtype = dtype_;
      found.value.data = static_cast<std::byte*>(copies.data) + static_cast<std::size_t>(offsets_[p]) * size_of(dtype_);
    }
    return found;
  }
  throw Error(ErrorCode::invalid_argument, "gnmt.model", "no parameter has the name " + std::string(name));
}

LstmWeights Parameters::lstm(const std::string& prefix, bool both_ways, bool copied) const {
  LstmWeights out;
  for (const char* way : {"", "_reverse"}) {
    if (*way != '\0' && !both_ways) break;
    const Parameter w_ih = find(prefix + ".weight_ih" + way, copied);
    const Parameter w_hh = find(prefix + ".weight_hh" + way, copied);
    const Parameter b_ih = find(prefix + ".bias_ih" + way, copied);
    const Parameter b_hh = find(prefix + ".bias_hh" + way, copied);
    out.values.push_back({.w_ih = w_ih.value, .w_hh = w_hh.value, .b_ih = b_ih.value, .b_hh = b_hh.value});
    out.gradients.push_back({.w_ih = w_ih.gradient, .w_hh = w_hh.gradient, .b_ih = b_ih.gradient, .b_hh = b_hh.gradient});
  }
  return out;
}

Weights Parameters::bind(const ModelDescription& description, bool copied) const {
  Weights out;
  const Parameter embedding = find("embedding.weight", copied);
  out.embedding = embedding.value, out.embedding_gradient = embedding.gradient;
  for (std::int64_t l = 0; l < description.layers; ++l) {
    out.encoder.push_back(lstm(layer_name("encoder", l), l == 0, copied));
    out.decoder.push_back(lstm(layer_name("decoder", l), false, copied));
  }
  const auto linear = [&](const std::string& prefix) {
    const Parameter weight = find(prefix + ".weight", copied);
    const Parameter bias = find(prefix + ".bias", copied);
    return LinearWeights{weight.value, bias.value, weight.gradient, bias.gradient};
  };
  if (description.layers == 1) out.projection = linear("encoder.projection");
  out.classifier = linear("classifier");
  const Parameter query = find("attention.query", copied);
  out.query.weight = query.value, out.query.weight_gradient = query.gradient;
  const std::int64_t H = description.hidden;
  const Parameter key = find("attention.key", copied);
  out.key_value.weight = TensorView(key.value.data, key.value.dtype, {2 * H, H}, key.value.device);
  out.key_value.weight_gradient = TensorView(key.gradient.data, key.gradient.dtype, {2 * H, H}, key.value.device);
  return out;
}

void Parameters::put(const TensorView& to, const std::vector<double>& from, const Stream& stream) const {
  const auto n = static_cast<std::int64_t>(from.size());
  if (master_ == DType::f64) {
    copy(to, ConstTensorView(from.data(), DType::f64, {n}), stream);
  } else {
    const std::vector<float> narrow(from.begin(), from.end());
    copy(to, ConstTensorView(narrow.data(), DType::f32, {n}), stream);
  }
  stream.synchronize();
}

void Parameters::clear(const Stream& stream) {
  const std::vector<double> zeros(static_cast<std::size_t>(elements_), 0.0);
  for (const TensorView* block : {&values, &gradients, &m, &v}) put(*block, zeros, stream);
  const std::int64_t none = 0;
  copy(scalars.step, ConstTensorView(&none, DType::i64, {1}), stream);
  const float scaler[] = {first_loss_scale, 0, 0};
  copy(scalars.scaler, ConstTensorView(scaler, DType::f32, {3}), stream);
  stream.synchronize();
}

void Parameters::initialise(std::uint64_t seed, const Stream& stream) {
  clear(stream);
  std::mt19937_64 random(seed);
  std::vector<double> first(static_cast<std::size_t>(elements_), 0.0);
  for (std::size_t p = 0; p < list.size(); ++p)
    for (std::int64_t i = 0; i < list[p].value.elements(); ++i)
      first[static_cast<std::size_t>(offsets_[p] + i)] = (static_cast<double>(random() >> 40) * 0x1p-23 - 1) * 0.1;
  put(values, first, stream);
}

}  // namespace everglow::gnmt
