// Times products of the linear rows and fits their costs.
#include "cli/fit.hpp"
#include "cli/layer_runs.hpp"
#include "cli/probe.hpp"

#include <algorithm>

namespace everglow::cli {
namespace {

constexpr Lap lap_of_product{.samples = 3, .least_us = 300, .most_samples = 12};
constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};

struct Sizes {
  std::int64_t batch, inputs, outputs;
};
/// From a call to a large product: each of the five costs is most of the time in one of them.
constexpr Sizes sizes_of_products[] = {{64, 64, 64},    {1, 1024, 1024},   {16, 512, 512},  {128, 512, 256},
                                       {512, 512, 512}, {256, 1024, 1024}, {1024, 64, 512}, {1024, 512, 64}};
constexpr Sizes large = {512, 512, 512};
/// A step of a loop: few rows, a packed matrix of at most 256 KiB in f32.
constexpr Sizes sizes_of_steps[] = {{1, 128, 512},  {4, 128, 512},  {14, 128, 512}, {64, 128, 512},
                                    {64, 256, 128}, {16, 512, 128}, {32, 64, 512}};

LinearDescription description(const Sizes& s, DType dtype, bool training = true) {
  return {.inputs = s.inputs, .outputs = s.outputs, .dtype = dtype, .training = training};
}

/// Row-major m, n, k of a pass.
std::array<double, 3> product_of(const Sizes& s, std::size_t pass) {
  const auto batch = static_cast<double>(s.batch), in = static_cast<double>(s.inputs), out = static_cast<double>(s.outputs);
  if (pass == 0) return {batch, out, in};
  if (pass == 1) return {batch, in, out};
  return {out, in, batch};
}

double multiplications(const Sizes& s) { return static_cast<double>(s.batch) * static_cast<double>(s.inputs * s.outputs); }

std::vector<double> counts_of(const std::array<double, 3>& sizes) {
  const auto [m, n, k] = sizes;
  return {1, m * n * k / 1000, m * k / 1000, k * n / 1000, m * n / 1000};
}

ProductCosts fitted(const std::vector<Counted>& calls) {
  const std::vector<double> costs = fit_costs(calls);
  if (costs.empty()) return {};
  return {costs[0], costs[1], costs[2], costs[3], costs[4]};
}

/// A linear layer on packed weights that stay in a cache, or the packing itself.
struct Packed {
  Packed(OperandMemory& memory, const LinearDescription& d, const LinearSizes& sizes, const PlanOptions& options)
      : plan(d, sizes, Device::cpu(), options),
        bytes(plan.packed_bytes(), Device::cpu()),
        workspace(plan.workspace_bytes(), Device::cpu()),
        tensors(memory, true) {
    x = tensors.read(d.dtype, {sizes.batch, d.inputs});
    weight = d.layout == LinearLayout::outputs_inputs ? tensors.read(d.dtype, {d.outputs, d.inputs})
                                                      : tensors.read(d.dtype, {d.inputs, d.outputs});
    y = tensors.written(DType::f32 == d.dtype ? DType::f32 : d.dtype, {sizes.batch, d.outputs});
    tensors.seal();
    packed.bytes = TensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())});
    pack();
  }
  void pack() { plan.pack(tensors.at(weight, 0), packed); }
  void forward() const { plan.forward({.x = tensors.at(x, 0), .y = tensors.at(y, 0), .packed = &packed}, workspace); }
  LinearPlan plan;
  Buffer bytes, workspace;
  Operands tensors;
  PackedWeights packed;
  int x = -1, weight = -1, y = -1;
};

std::function<void(std::int64_t)> packed_run(OperandMemory& memory, const Sizes& s, DType dtype) {
  const auto layer = std::make_shared<Packed>(memory, description(s, dtype, false), LinearSizes{s.batch},
                                              PlanOptions{.threads = 1, .force = "cpu.linear"});
  return [layer](std::int64_t) { layer->forward(); };
}

std::function<void(std::int64_t)> pack_run(OperandMemory& memory, DType dtype, bool turned) {
  LinearDescription d = description({1, 256, 512}, dtype, false);
  d.layout = turned ? LinearLayout::outputs_inputs : LinearLayout::inputs_outputs;
  const auto layer = std::make_shared<Packed>(memory, d, LinearSizes{1}, PlanOptions{.threads = 1, .force = "cpu.linear"});
  return [layer](std::int64_t) { layer->pack(); };
}

std::function<void(std::int64_t)> forward_run(OperandMemory& memory, const Sizes& s, DType dtype, const PlanOptions& options) {
  return linear_runs(memory, description(s, dtype, false), {s.batch}, options).front().run;
}

}  // namespace

ProductProbe::ProductProbe(OperandMemory& memory, int threads) : threads_(threads) {
  for (const DType dtype : dtypes) add(memory, threads, dtype, true);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    add(memory, threads, dtype, false);
    add_step(memory, dtype);
    for (const bool turned : {false, true})
      packs_.push_back({static_cast<std::size_t>(dtype), turned ? 1U : 0U, Stopwatch(pack_run(memory, dtype, turned))});
  }
  const auto own = [&](int count) { return PlanOptions{.threads = count, .force = "cpu.linear"}; };
  // Work for two threads, as little as there is.
  constexpr Sizes least = {16, 16, 16}, two = {128, 64, 64};
  call_ = std::make_unique<Stopwatch>(packed_run(memory, least, DType::f32));
  alone_ = std::make_unique<Stopwatch>(forward_run(memory, two, DType::f32, own(1)));
  together_ = std::make_unique<Stopwatch>(forward_run(memory, two, DType::f32, own(threads)));
  core_f32_ = std::make_unique<Stopwatch>(forward_run(memory, large, DType::f32, own(1)));
}

void ProductProbe::add(OperandMemory& memory, int threads, DType dtype, bool library) {
  const PlanOptions options{.threads = threads, .force = library ? "onednn.linear" : "cpu.linear"};
  const auto index = static_cast<std::size_t>(dtype);
  try {
    for (const Sizes& s : sizes_of_products) {
      const auto runs = linear_runs(memory, description(s, dtype), {s.batch}, options);
      for (std::size_t pass = 0; pass < runs.size(); ++pass)
        products_.push_back({index, pass, library, product_of(s, pass), Stopwatch(runs[pass].run)});
    }
    PlanOptions one = options;
    one.threads = 1;
    if (library) cores_.push_back({index, Stopwatch(forward_run(memory, large, dtype, one))});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;  // no such products on this CPU
  }
}

void ProductProbe::add_step(OperandMemory& memory, DType dtype) {
  for (const Sizes& s : sizes_of_steps)
    steps_.push_back({static_cast<std::size_t>(dtype), product_of(s, 0), Stopwatch(packed_run(memory, s, dtype))});
}

void ProductProbe::lap() {
  for (Product& p : products_) p.watch.lap(lap_of_product);
  for (Step& s : steps_) s.watch.lap(lap_of_product);
  for (Core& c : cores_) c.watch.lap(lap_of_product);
  for (Pack& p : packs_) p.watch.lap(lap_of_product);
  for (const auto& watch : {call_.get(), alone_.get(), together_.get(), core_f32_.get()}) watch->lap(lap_of_product);
}

ProductCosts ProductProbe::costs_of(std::size_t dtype, std::size_t pass, bool library) const {
  std::vector<Counted> calls;
  for (const Product& p : products_)
    if (p.dtype == dtype && p.pass == pass && p.library == library) calls.push_back({counts_of(p.sizes), p.watch.us()});
  return fitted(calls);
}

void ProductProbe::put(DeviceFigures& figures) const {
  CpuFigures& out = figures.cpu;
  out.threads = threads_;
  for (std::size_t d = 0; d < 3; ++d)
    for (std::size_t pass = 0; pass < 3; ++pass) {
      out.library[d][pass] = costs_of(d, pass, true);
      out.own[d][pass] = costs_of(d == 0 ? 0 : 2, pass, false);  // f16 is widened as bf16 is, by as many instructions
    }
  const double empty = call_->us();
  for (std::size_t d = 0; d < 3; ++d) {
    std::vector<Counted> calls;
    for (const Step& s : steps_)
      if (s.dtype == (d == 0 ? 0U : 2U)) calls.push_back({counts_of(s.sizes), s.watch.us()});
    out.step[d] = fitted(calls);
    out.step[d].call_us = std::max(out.step[d].call_us - empty, 0.0);  // the loop has no plan to ask
    for (const Pack& p : packs_)
      if (p.dtype == (d == 0 ? 0U : 2U)) out.pack_ns[d][p.turned] = 1000 * p.watch.us() / (256 * 512);
  }
  const double flops = 2 * multiplications(large);
  const double core = flops / core_f32_->us() / 1e6;  // TFLOP/s
  out.core_tflops.fill(core);
  for (const Core& c : cores_) out.core_tflops[c.dtype] = std::max(flops / c.watch.us() / 1e6, core);
  double own = core;
  for (const Product& p : products_)
    if (!p.library) own = std::max(own, p.tflops());
  out.speedup = std::clamp(own / core, 1.0, static_cast<double>(threads_));
  if (threads_ == 1) out.speedup = 1;
  out.fork_us = threads_ > 1 ? std::max(together_->us() - alone_->us() / std::min(2.0, out.speedup), 0.0) : 0;
  const std::array<double, 3> best = tflops();
  figures.f32_tflops = figures.tf32_tflops = best[0], figures.f16_tflops = best[1], figures.bf16_tflops = best[2];
}

std::array<double, 3> ProductProbe::tflops() const {
  std::array<double, 3> out{};
  // What our own products reach in 16 bits is what they reach in f32.
  for (const Product& p : products_)
    for (std::size_t d = 0; d < 3; ++d)
      if (d == p.dtype || !p.library) out[d] = std::max(out[d], p.tflops());
  return out;
}

}  // namespace everglow::cli
