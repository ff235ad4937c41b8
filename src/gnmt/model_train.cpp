// The model at work: batches to the device, a pass forward and backward, the optimiser, and training steps that the host does not
// wait for.
#include "model_impl.hpp"

#include "gnmt/hash.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace everglow::gnmt {
namespace {

/// Passes kept. One costs some kilobytes and takes microseconds to make; on a card it may hold a graph of a megabyte, which takes
/// milliseconds.
constexpr std::size_t most_passes = 64, most_passes_on_card = 512;

/// Units of the sizes of a card's passes. An epoch of short sentences then has a hundred shapes instead of one for each batch, for
/// 4 % more positions; rows come in the units that products are made of.
constexpr std::int64_t step_unit = 2, row_unit = 32;

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

TensorView bytes_from(const TensorView& first, const TensorView& last) {
  const auto* const begin = static_cast<const std::byte*>(first.data);
  const auto* const end =
      static_cast<const std::byte*>(last.data) + static_cast<std::size_t>(last.elements()) * size_of(last.dtype);
  return {first.data, DType::u8, {end - begin}, first.device};
}

}  // namespace

PassShape Model::Impl::shape_of(const BatchSizes& sizes, bool training) const {
  if (!setting.on_card()) return {sizes.source_steps, sizes.target_steps, sizes.rows, training, true};
  return {rounded_up(sizes.source_steps, step_unit), rounded_up(sizes.target_steps, step_unit), rounded_up(sizes.rows, row_unit),
          training, true};
}

Pass& Model::Impl::find(const PassShape& shape) {
  const auto found = std::find_if(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.shape == shape; });
  if (found == passes.end()) {
    if (passes.size() >= (setting.on_card() ? most_passes_on_card : most_passes)) passes.pop_back();
    passes.emplace_front(shape.wide ? decoding : setting, shape);
  } else {
    passes.splice(passes.begin(), passes, found);
  }
  return passes.front();
}

Pass& Model::Impl::pass(const PassShape& shape) {
  Pass& found = find(shape);
  found.place(block, setting.device.device);
  return found;
}

void Model::Impl::give(Pass& pass, const Batch& batch, std::uint64_t key) {
  const auto fill = [&](const PassInputs& to) {
    fill_inputs(to, batch);
    if (!to.dropout.given()) return;
    auto* const states = static_cast<std::int64_t*>(to.dropout.data);
    for (std::int64_t use = 0; use < to.dropout.size(0); ++use) {
      states[2 * use] = static_cast<std::int64_t>(key);
      states[2 * use + 1] = use * static_cast<std::int64_t>(pass.elementwise.dropout_counters());
    }
  };
  if (!setting.on_card()) return fill(pass.inputs);
  Carver carver(inputs.take(static_cast<std::size_t>(pass.block.elements())), Device::cpu());
  fill(PassInputs(carver, pass.shape, dropout_uses(setting.model)));
  inputs.send(pass.block, setting.stream);
}

void Model::Impl::run_forward(const Pass& pass) {
  pass.encoder.forward(pass.elementwise);
  if (pass.decoder) pass.decoder->forward(pass.elementwise, pass.encoder);
}

void Model::Impl::run_backward(const Pass& pass) {
  pass.decoder->backward(pass.elementwise, pass.encoder);
  pass.encoder.backward(pass.elementwise);
}

Pass& Model::Impl::forward(const Batch& batch, const PassShape& shape, std::uint64_t key) {
  Pass& pass = this->pass(shape);
  give(pass, batch, key);
  run_forward(pass);
  return pass;
}

LossSum Model::Impl::read_loss() const {
  return {.loss = download(parameters.scalars.loss, setting.stream)[0],
          .tokens = std::llround(download(parameters.scalars.count, setting.stream)[0])};
}

void Model::Impl::prepare_optimiser(double clip) {
  if (adam && adam_clip == clip) return;
  adam.emplace(AdamDescription{.clip = static_cast<float>(clip)}, AdamSizes{parameters.values.elements(), 1}, setting.device,
               setting.options);
  adam_clip = clip;
  if (adam_memory.data() == nullptr || adam_memory.bytes() < adam->workspace_bytes()) {
    setting.stream.synchronize();  // the memory may be in use
    adam_memory = Buffer(std::max<std::size_t>(adam->workspace_bytes(), 1), setting.device.device);
  }
  for (Pass& pass : passes) pass.step = {}, pass.ran = false;  // their graphs hold the optimiser that was
}

void Model::Impl::run_optimiser() const {
  const Parameters& p = parameters;
  const AdamTensor all{.parameter = p.values, .gradient = p.gradients, .m = p.m, .v = p.v, .copy = p.copies};
  AdamStep step{.tensors = std::span(&all, 1),
                .step = p.scalars.step,
                .rate = p.scalars.rates.narrow(0, 0, 1),
                .norm = p.scalars.norm,
                .overflow = p.scalars.overflow};
  if (setting.scales_loss()) step.rate = p.scalars.rates, step.scaler = p.scalars.scaler;
  adam->step(step, adam_memory, setting.stream);
}

void Model::Impl::give_rates(std::span<const double> given) {
  if (given.empty()) throw Error(ErrorCode::invalid_argument, "gnmt.step", "rates: expected at least one, got none");
  const TensorView& to = parameters.scalars.rates;
  const auto entries = to.elements();
  auto* const out = reinterpret_cast<float*>(rates.take(static_cast<std::size_t>(entries) * sizeof(float)));
  // At most most_steps_ahead steps have not told yet whether they were skipped. The caller counts from what it has taken.
  for (std::int64_t all = skipped; all < skipped + entries; ++all)
    out[all % entries] = static_cast<float>(given[std::min(static_cast<std::size_t>(all - skipped_taken), given.size() - 1)]);
  rates.send(bytes_from(to, to), setting.stream);
}

void Model::Impl::run_step(Pass& pass) {
  const auto work = [&] {
    run_forward(pass);
    run_backward(pass);
    run_optimiser();
  };
  if (!setting.on_card() || !pass.ran) {  // the first run also lets libraries choose and load what they need
    work();
    pass.ran = true;
    return;
  }
  if (!pass.step.given()) pass.step = Graph::capture(setting.stream, work);
  pass.step.launch(setting.stream);
}

void Model::Impl::ask_result() {
  const Device device = setting.device.device;
  if (asked.empty())
    for (std::int64_t i = 0; i < most_steps_ahead; ++i) {
      StepScalars scalars;
      const std::size_t bytes = place_scalars(scalars, nullptr, Device::cpu(), setting.model.dtype);
      asked.push_back({.memory = Buffer::on_host(bytes, device), .there = Event(device), .scalars = {}});
      place_scalars(asked.back().scalars, asked.back().memory.data(), Device::cpu(), setting.model.dtype);
    }
  Asked& slot = asked[static_cast<std::size_t>(steps_given % most_steps_ahead)];
  copy(bytes_from(slot.scalars.rates, slot.scalars.overflow), bytes_from(parameters.scalars.rates, parameters.scalars.overflow),
       setting.stream);
  slot.there.record(setting.stream);
  ++steps_given;
}

void Model::Impl::collect() {
  const Asked& slot = asked[static_cast<std::size_t>(steps_come % most_steps_ahead)];
  slot.there.synchronize();
  ++steps_come;
  const auto f32 = [](const TensorView& view) { return static_cast<double>(*static_cast<const float*>(view.data)); };
  const StepScalars& s = slot.scalars;
  StepResult result;
  result.loss.loss = s.loss.dtype == DType::f64 ? *static_cast<const double*>(s.loss.data) : f32(s.loss);
  result.loss.tokens = std::llround(f32(s.count));
  result.norm = f32(s.norm);
  result.skipped = *static_cast<const std::int32_t*>(s.overflow.data) != 0;
  if (setting.scales_loss()) {
    const auto* const scaler = static_cast<const float*>(s.scaler.data);
    result.loss_scale = static_cast<double>(scaler[0]);
    skipped = static_cast<std::int64_t>(scaler[2]);
  }
  results.push_back(result);
}

void Model::Impl::read_skipped() { skipped = skipped_taken = std::llround(download(parameters.scalars.scaler, setting.stream)[2]); }

double Model::apply(double rate, double clip) {
  Impl& m = *impl_;
  m.prepare_optimiser(clip);
  while (m.steps_come < m.steps_given) m.collect();  // what they skipped counts before what this step skips
  m.give_rates(std::span(&rate, 1));
  m.run_optimiser();
  if (m.setting.scales_loss()) m.read_skipped();
  return download(m.parameters.scalars.norm, m.setting.stream)[0];
}

void Model::train_step(const Batch& batch, const TrainStep& step) {
  check_batch("gnmt.train_step", batch, true);
  Impl& m = *impl_;
  m.prepare_optimiser(step.clip);
  while (m.steps_given - m.steps_come >= most_steps_ahead) m.collect();
  const PassShape shape = m.shape_of({batch.rows, batch.source_steps, batch.target_steps}, true);
  Pass& pass = m.pass(shape);
  m.give(pass, batch, mixed(step.seed ^ mixed(step.step)));
  m.give_rates(step.rates);
  m.run_step(pass);
  m.ask_result();
  m.trained = shape;
}

std::vector<StepResult> Model::take_results(bool wait) {
  while (wait && impl_->steps_come < impl_->steps_given) impl_->collect();
  impl_->skipped_taken = impl_->skipped;
  return std::exchange(impl_->results, {});
}

void Model::reserve(std::span<const BatchSizes> sizes) {
  Impl& m = *impl_;
  std::size_t bytes = 0, staged = 0;
  for (const BatchSizes& size : sizes) {
    const Pass& pass = m.find(m.shape_of(size, true));
    bytes = std::max(bytes, pass.bytes());
    staged = std::max(staged, static_cast<std::size_t>(pass.block.elements()));
  }
  m.block.reserve(bytes);
  if (m.setting.on_card()) m.inputs.reserve(staged);
}

}  // namespace everglow::gnmt
