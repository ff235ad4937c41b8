// The model's face: training steps, evaluation, and what it tells of itself.
#include "model_impl.hpp"

#include "gnmt/hash.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace everglow::gnmt {
namespace {

void require(bool condition, std::string_view where, const std::string& what) {
  if (!condition) throw Error(ErrorCode::invalid_argument, where, what);
}

}  // namespace

const ModelDescription& check_description(const ModelDescription& d) {
  constexpr std::string_view where = "gnmt.model";
  require(d.hidden >= 1, where, "hidden: expected 1 or more, got " + std::to_string(d.hidden));
  require(d.hidden % d.heads() == 0, where,
          "hidden: expected a multiple of its " + std::to_string(d.heads()) + " heads, got " + std::to_string(d.hidden));
  require(d.layers >= 1, where, "layers: expected 1 or more, got " + std::to_string(d.layers));
  require(d.vocabulary > eos_id, where, "vocabulary: expected 4 or more, got " + std::to_string(d.vocabulary));
  require(d.dropout >= 0 && d.dropout < 1, where, "dropout: expected 0 or more and less than 1, got " + std::to_string(d.dropout));
  require(d.label_smoothing >= 0 && d.label_smoothing < 1, where,
          "label_smoothing: expected 0 or more and less than 1, got " + std::to_string(d.label_smoothing));
  if (d.dtype != DType::f32 && d.dtype != DType::f16 && d.dtype != DType::bf16 && d.dtype != DType::f64)
    throw Error(ErrorCode::unsupported, where, "dtype: expected f32, f16, bf16 or f64, got " + std::string(name(d.dtype)));
  return d;
}

void check_batch(std::string_view where, const Batch& batch, bool targets) {
  const auto side = [where](const char* argument, std::int64_t expected, std::size_t got) {
    require(expected == static_cast<std::int64_t>(got), where,
            std::string(argument) + ": expected " + std::to_string(expected) + " values, got " + std::to_string(got));
  };
  require(batch.rows >= 0 && batch.source_steps >= 0 && batch.target_steps >= 0, where, "batch: expected sizes of 0 or more");
  side("source", batch.rows * batch.source_steps, batch.source.size());
  side("source_lengths", batch.rows, batch.source_lengths.size());
  if (!targets) return;
  side("decoder_input", batch.rows * batch.target_steps, batch.decoder_input.size());
  side("targets", batch.rows * batch.target_steps, batch.targets.size());
}

namespace {

const ModelDescription& check_on(const ModelDescription& d, Device device) {
  if (d.dtype == DType::f64 && device.kind != DeviceKind::cpu)
    throw Error(ErrorCode::unsupported, "gnmt.model", "dtype: expected f32, f16 or bf16 on " + to_string(device) + ", got f64");
  return check_description(d);
}

Setting with_masters(const Setting& setting, const Parameters& parameters) {
  Setting out = setting;
  out.model.dtype = master_type(setting.model.dtype);
  out.parameters = &parameters.masters;
  return out;
}

}  // namespace

Model::Impl::Impl(const ModelDescription& description, Device device, const PlanOptions& options)
    : own(device),
      parameters(check_on(description, device), device),
      setting{description, DeviceDescription(device), options, own.stream(), &parameters.weights, &parameters.scalars},
      decoding(with_masters(setting, parameters)),
      block(device),
      inputs(device),
      rates(device) {
  if (parameters.copies.given())
    narrow.emplace(PointwiseDescription{.operation = Pointwise::copy, .dtype = description.dtype},
                   PointwiseSizes{parameters.values.elements()}, setting.device, options);
}

Model::Model(const ModelDescription& description, Device device, const PlanOptions& options)
    : impl_(std::make_unique<Impl>(description, device, options)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

const ModelDescription& Model::description() const { return impl_->setting.model; }
std::span<const Parameter> Model::parameters() const { return impl_->parameters.list; }
TensorView Model::optimizer_step() const { return impl_->parameters.scalars.step; }
TensorView Model::loss_scaler() const { return impl_->parameters.scalars.scaler; }

void Model::initialise(std::uint64_t seed) {
  impl_->parameters.initialise(seed, impl_->setting.stream);
  weights_changed();
}

void Model::weights_changed() {
  const Impl& m = *impl_;
  if (m.narrow) m.narrow->run({.a = m.parameters.values, .y = m.parameters.copies}, {}, m.setting.stream);
  impl_->read_skipped();
}

std::vector<LayerChoice> Model::choices() const { return impl_->trained ? impl_->find(*impl_->trained).choices() : impl_->choices; }

LossSum Model::forward_backward(const Batch& batch, std::uint64_t seed, std::uint64_t step) {
  check_batch("gnmt.forward_backward", batch, true);
  const PassShape shape = impl_->shape_of({batch.rows, batch.source_steps, batch.target_steps}, true);
  const Pass& pass = impl_->forward(batch, shape, mixed(seed ^ mixed(step)));
  Impl::run_backward(pass);
  impl_->trained = shape;
  return impl_->read_loss();
}

LossSum Model::evaluate(const Batch& batch) {
  check_batch("gnmt.evaluate", batch, true);
  const Pass& pass = impl_->forward(batch, impl_->shape_of({batch.rows, batch.source_steps, batch.target_steps}, false), 0);
  pass.decoder->loss();
  return impl_->read_loss();
}

std::vector<std::vector<double>> Model::attention(const Batch& pair) {
  check_batch("gnmt.attention", pair, true);
  require(pair.rows == 1, "gnmt.attention", "rows: expected 1, got " + std::to_string(pair.rows));
  const std::int64_t T = pair.target_steps, S = pair.source_steps, H = impl_->setting.model.hidden;
  const std::int64_t heads = impl_->setting.model.heads(), D = H / heads;
  const Pass& pass = impl_->forward(pair, {S, T, 1, false, true, true}, 0);
  const std::vector<double> q = download(pass.decoder->query, impl_->setting.stream);
  const std::vector<double> k = download(pass.encoder.key_value, impl_->setting.stream);
  const std::vector<double> lse = download(pass.decoder->lse, impl_->setting.stream);
  std::vector<std::vector<double>> mean(static_cast<std::size_t>(T), std::vector<double>(static_cast<std::size_t>(S), 0.0));
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t s = 0; s < pair.source_lengths[0]; ++s) {
        double score = 0;
        for (std::int64_t d = 0; d < D; ++d)
          score += q[static_cast<std::size_t>(t * H + h * D + d)] * k[static_cast<std::size_t>(s * 2 * H + h * D + d)];
        const double p = std::exp(score / std::sqrt(static_cast<double>(D)) - lse[static_cast<std::size_t>(h * T + t)]);
        mean[static_cast<std::size_t>(t)][static_cast<std::size_t>(s)] += p / static_cast<double>(heads);
      }
  return mean;
}

}  // namespace everglow::gnmt
