// The model's face: training steps, evaluation, and what it tells of itself.
#include "model_impl.hpp"

#include "gnmt/hash.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace everglow::gnmt {
namespace {

/// Passes kept; one costs some kilobytes and takes microseconds to make, so a bound on their number costs nothing.
constexpr std::size_t most_passes = 64;

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
  if (d.dtype != DType::f32 && d.dtype != DType::f64)
    throw Error(ErrorCode::unsupported, where, "dtype: expected f32 or f64, got " + std::string(name(d.dtype)));
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

Model::Impl::Impl(const ModelDescription& description, Device device, const PlanOptions& options)
    : parameters(check_description(description), device),
      setting{description, DeviceDescription(device), options, Stream{device}, &parameters},
      block(device) {}

Pass& Model::Impl::pass(const PassShape& shape) {
  auto found = std::find_if(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.shape == shape; });
  if (found == passes.end()) {
    passes.emplace_front(setting, shape);
    if (passes.size() > most_passes) passes.pop_back();
  } else {
    passes.splice(passes.begin(), passes, found);
  }
  passes.front().place(block, setting.device.device);
  return passes.front();
}

Pass& Model::Impl::forward(const Batch& batch, const PassShape& shape, std::uint64_t key) {
  Pass& pass = this->pass(shape);
  pass.elementwise.key = key;
  upload(pass.encoder.source, batch.source.data(), setting.stream);
  upload(pass.encoder.lengths, batch.source_lengths.data(), setting.stream);
  pass.encoder.forward(pass.elementwise);
  if (!pass.decoder) return pass;
  upload(pass.decoder->input, batch.decoder_input.data(), setting.stream);
  upload(pass.decoder->targets, batch.targets.data(), setting.stream);
  pass.decoder->forward(pass.elementwise, pass.encoder);
  return pass;
}

LossSum Model::Impl::read_loss(const Pass& pass) const {
  return {.loss = download(pass.decoder->loss_sum, setting.stream)[0],
          .tokens = std::llround(download(pass.decoder->count, setting.stream)[0])};
}

Model::Model(const ModelDescription& description, Device device, const PlanOptions& options)
    : impl_(std::make_unique<Impl>(description, device, options)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

const ModelDescription& Model::description() const { return impl_->setting.model; }
std::span<const Parameter> Model::parameters() const { return impl_->parameters.list; }
TensorView Model::optimizer_step() const { return impl_->parameters.step; }
void Model::initialise(std::uint64_t seed) { impl_->parameters.initialise(seed, impl_->setting.stream); }
std::vector<LayerChoice> Model::choices() const { return impl_->choices; }

LossSum Model::forward_backward(const Batch& batch, std::uint64_t seed, std::uint64_t step) {
  check_batch("gnmt.forward_backward", batch, true);
  const PassShape shape{batch.source_steps, batch.target_steps, batch.rows, true, true};
  Pass& pass = impl_->forward(batch, shape, mixed(seed ^ mixed(step)));
  pass.decoder->backward(pass.elementwise, pass.encoder);
  pass.encoder.backward(pass.elementwise);
  impl_->choices = pass.choices();
  return impl_->read_loss(pass);
}

LossSum Model::evaluate(const Batch& batch) {
  check_batch("gnmt.evaluate", batch, true);
  Pass& pass = impl_->forward(batch, {batch.source_steps, batch.target_steps, batch.rows, false, true}, 0);
  pass.decoder->loss();
  return impl_->read_loss(pass);
}

double Model::apply(double rate, double clip) {
  Impl& m = *impl_;
  const Device device = m.setting.device.device;
  if (!m.adam || m.adam_clip != clip) {
    m.adam.emplace(AdamDescription{.clip = static_cast<float>(clip)}, AdamSizes{m.parameters.values.elements(), 1},
                   m.setting.device, m.setting.options);
    m.adam_clip = clip;
  }
  const auto carve = [&](void* base) {
    Carver carver(base, device);
    const TensorView workspace = carver.take_bytes(m.adam->workspace_bytes());
    const TensorView scalars = carver.take(DType::f32, {2});
    const TensorView overflow = carver.take(DType::i32, {1});
    return std::tuple(workspace, scalars, overflow, carver.bytes());
  };
  const std::size_t needed = std::get<3>(carve(nullptr));
  if (m.adam_memory.bytes() < needed) m.adam_memory = Buffer(needed, device);
  const auto [workspace, scalars, overflow, bytes] = carve(m.adam_memory.data());
  const TensorView rate_view = scalars.narrow(0, 0, 1), norm = scalars.narrow(0, 1, 1);
  const float rate32 = static_cast<float>(rate);
  const std::int32_t none = 0;
  copy(rate_view, ConstTensorView(&rate32, DType::f32, {1}), m.setting.stream);
  upload(overflow, &none, m.setting.stream);
  const AdamTensor all{
      .parameter = m.parameters.values, .gradient = m.parameters.gradients, .m = m.parameters.m, .v = m.parameters.v};
  m.adam->step({.tensors = std::span(&all, 1), .step = m.parameters.step, .rate = rate_view, .norm = norm, .overflow = overflow},
               workspace_of(workspace), m.setting.stream);
  return download(norm, m.setting.stream)[0];
}

std::vector<std::vector<double>> Model::attention(const Batch& pair) {
  check_batch("gnmt.attention", pair, true);
  require(pair.rows == 1, "gnmt.attention", "rows: expected 1, got " + std::to_string(pair.rows));
  const std::int64_t T = pair.target_steps, S = pair.source_steps, H = impl_->setting.model.hidden;
  const std::int64_t heads = impl_->setting.model.heads(), D = H / heads;
  const Pass& pass = impl_->forward(pair, {S, T, 1, false, true}, 0);
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
