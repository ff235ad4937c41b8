// Linear, recurrent, softmax and elementwise layers on a card, beside a copy of the same bytes. Usage: everglow_cuda_bench
// OUT.jsonl [LAYER [WORDS]]
#include "bench/cuda/clock.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

namespace everglow::bench {
namespace {

/// Where records go, and which cases are wanted: those whose line has these words in it.
struct Sink {
  std::function<void(const Record&)> take;
  std::string words{};
  void operator()(const Record& record) const { take(record); }
  bool wants(const std::string& line) const { return line.find(words) != std::string::npos; }
};

std::string words(std::initializer_list<std::pair<const char*, std::int64_t>> fields) {
  std::string out;
  for (const auto& [name, value] : fields) out += ' ' + std::string(name) + '=' + std::to_string(value);
  return out;
}

void copies(const Sink& sink) {
  constexpr std::int64_t bytes = std::int64_t{2} << 30;
  const Buffer from(bytes, card), to(bytes, card);
  const TensorView a(from.data(), DType::u8, {bytes}, card), b(to.data(), DType::u8, {bytes}, card);
  sink(timed({"copy", "copy" + words({{"bytes", bytes}}), "run", "cuda.memcpy", "u8", 0, 2.0 * bytes},
             [&](const Stream& stream) { copy(b, a, stream); }));
}

struct Linear {
  std::int64_t batch, inputs, outputs;
  DType dtype = DType::f16;
  Activation activation = Activation::none;
  bool training = true;
  bool preferred = false;  // rows on plan.preferred_stride
  bool tuned = false;      // algorithms measured beforehand; every later row of these products has them
};

const char* const activations[] = {"none", "relu", "gelu_tanh", "gelu_erf", "silu"};

void linear(const Linear& c, const Sink& sink) {
  const LinearPlan plan(
      {.inputs = c.inputs, .outputs = c.outputs, .dtype = c.dtype, .activation = c.activation, .training = c.training}, {c.batch},
      card);
  const std::int64_t in = c.preferred ? plan.preferred_stride(c.inputs) : 0,
                     out = c.preferred ? plan.preferred_stride(c.outputs) : 0;
  const Numbers x(c.dtype, c.batch, c.inputs, in), w(c.dtype, c.outputs, c.inputs, in), b(c.dtype, 1, c.outputs);
  const Numbers y(c.dtype, c.batch, c.outputs, out), z(c.dtype, c.batch, c.outputs, out);
  const Buffer scratch(plan.workspace_bytes(), card);
  TensorView bias = b.view();
  bias.rank = 1, bias.shape = {c.outputs}, bias.strides = {1};
  const std::string line = "linear" + words({{"batch", c.batch}, {"inputs", c.inputs}, {"outputs", c.outputs}}) +
                           " activation=" + activations[static_cast<int>(c.activation)] + (c.training ? "" : " training=0") +
                           (c.preferred ? " rows=preferred" : "") + (c.tuned ? " tuned=1" : "");
  if (!sink.wants(line)) return;
  const double flops = 2.0 * static_cast<double>(c.batch) * static_cast<double>(c.inputs) * static_cast<double>(c.outputs);
  const auto size = static_cast<double>(size_of(c.dtype));
  const double bytes = size * (static_cast<double>(c.batch) * static_cast<double>(c.inputs + c.outputs) +
                               static_cast<double>(c.inputs) * static_cast<double>(c.outputs));
  const Subject subject{"linear", line, "forward", plan.explain().kernel, std::string(name(c.dtype)), flops, bytes};
  const bool stores = c.training && c.activation != Activation::none;
  const LinearForward forward{
      .x = x.view(), .weight = w.view(), .bias = bias, .y = y.view(), .preactivation = stores ? z.view() : TensorView()};
  if (c.tuned) plan.tune(forward, scratch, {card, nullptr});
  sink(timed(subject, [&](const Stream& stream) { plan.forward(forward, scratch, stream); }));
  if (!c.training || c.activation != Activation::none) return;
  const Numbers dx(c.dtype, c.batch, c.inputs, in), dw(c.dtype, c.outputs, c.inputs, in), dy(c.dtype, c.batch, c.outputs, out);
  const LinearBackward for_dx{.dy = dy.view(), .x = x.view(), .weight = w.view(), .dx = dx.view()};
  const LinearBackward for_dweight{.dy = dy.view(), .x = x.view(), .weight = w.view(), .dweight = dw.view(), .dbias = bias};
  if (c.tuned) plan.tune(for_dx, scratch, {card, nullptr}), plan.tune(for_dweight, scratch, {card, nullptr});
  Subject gradient = subject;
  gradient.direction = "activation_gradient";
  sink(timed(gradient, [&](const Stream& stream) { plan.backward(for_dx, scratch, stream); }));
  gradient.direction = "weight_gradient";
  sink(timed(gradient, [&](const Stream& stream) { plan.backward(for_dweight, scratch, stream); }));
}

void linears(const Sink& sink) {
  for (const auto& [batch, inputs, outputs] : {std::array<std::int64_t, 3>{4096, 1024, 4096},
                                               {512, 1024, 4096},
                                               {2048, 4096, 4096},
                                               {16384, 1024, 32320},
                                               {5120, 1024, 33708},
                                               {5120, 1024, 33712},
                                               {4096, 1023, 4097}}) {
    linear({batch, inputs, outputs}, sink);
    if (inputs % 8 != 0 || outputs % 8 != 0)
      linear({.batch = batch, .inputs = inputs, .outputs = outputs, .preferred = true}, sink);
  }
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu})
    for (const bool training : {false, true}) linear({4096, 1024, 4096, DType::f16, activation, training}, sink);
  linear({4096, 1024, 4096, DType::bf16}, sink);
  linear({4096, 1024, 4096, DType::f32}, sink);
  for (const Activation activation : {Activation::none, Activation::gelu_tanh})
    for (const bool training : {false, true})
      linear({.batch = 4096, .inputs = 1024, .outputs = 4096, .activation = activation, .training = training, .tuned = true}, sink);
}

struct Recurrent {
  Cell cell;
  std::int64_t steps, batch, hidden;
  DType dtype;
};

const char* const cells[] = {"lstm", "gru", "gru_reset_before", "tanh", "relu"};

/// A run captured into a graph, which is how a loop of many short kernels is meant to be used.
class Captured {
 public:
  explicit Captured(const std::function<void(const Stream&)>& run) {
    cudaStream_t own = nullptr;
    cudaStreamCreate(&own);
    run({card, own});
    cudaStreamSynchronize(own);
    cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal);
    run({card, own});
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(own, &graph);
    cudaGraphInstantiate(&ready_, graph, 0);
    cudaGraphDestroy(graph), cudaStreamDestroy(own);
  }
  ~Captured() { cudaGraphExecDestroy(ready_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void operator()(const Stream& stream) const { cudaGraphLaunch(ready_, static_cast<cudaStream_t>(stream.handle)); }

 private:
  cudaGraphExec_t ready_ = nullptr;
};

TensorView shaped(const Numbers& numbers, std::initializer_list<std::int64_t> shape) {
  return {numbers.view().data, numbers.view().dtype, shape, card};
}

/// One layer with as many inputs as hidden units: plain launches, and the same in a graph.
void recurrent(const Recurrent& c, const Sink& sink) {
  const std::int64_t t = c.steps, b = c.batch, h = c.hidden, gates = c.cell == Cell::lstm ? 4 : c.cell == Cell::tanh ? 1 : 3;
  const std::string line = std::string("recurrent cell=") + cells[static_cast<int>(c.cell)] +
                           words({{"steps", t}, {"batch", b}, {"inputs", h}, {"hidden", h}});
  if (!sink.wants(line)) return;
  const RecurrentPlan plan({.cell = c.cell, .inputs = h, .hidden = h, .dtype = c.dtype, .training = true}, {t, b}, card);
  const Numbers x(c.dtype, t * b, h), y(c.dtype, t * b, h), dy(c.dtype, t * b, h), dx(c.dtype, t * b, h),
      raw(c.dtype, gates * h, h), w_ih(c.dtype, gates * h, h), w_hh(c.dtype, gates * h, h), dw_ih(c.dtype, gates * h, h),
      dw_hh(c.dtype, gates * h, h), bias(c.dtype, 1, gates * h), dbias(c.dtype, 1, gates * h), other(c.dtype, 1, gates * h);
  // torch's range of weights, so that gates are neither dead nor saturated
  const float factor = 1 / std::sqrt(static_cast<float>(h));
  const PointwisePlan scale({.operation = Pointwise::scale, .dtype = c.dtype, .factor = factor}, {gates * h * h}, card);
  for (const Numbers* w : {&w_ih, &w_hh}) scale.run({.a = raw.view(), .y = w->view()}, {}, {card, nullptr});
  const Buffer scratch(plan.workspace_bytes(), card), reserve(plan.reserve_bytes(), card);
  const TensorView kept(reserve.data(), DType::u8, {static_cast<std::int64_t>(reserve.bytes())}, card);
  const RecurrentWeights weights{w_ih.view(), w_hh.view(), shaped(bias, {gates * h}), shaped(bias, {gates * h}), {}};
  const RecurrentWeightGradients gradients{dw_ih.view(), dw_hh.view(), shaped(dbias, {gates * h}), shaped(other, {gates * h}), {}};
  const auto sequence = [&](const Numbers& numbers) { return shaped(numbers, {t, b, h}); };
  const auto forward = [&](const Stream& stream) {
    plan.forward({.x = sequence(x), .weights = {&weights, 1}, .y = sequence(y), .reserve = kept}, scratch, stream);
  };
  const auto training = [&](const Stream& stream) {
    forward(stream);
    plan.backward({.x = sequence(x),
                   .weights = {&weights, 1},
                   .y = sequence(y),
                   .reserve = kept,
                   .dy = sequence(dy),
                   .dx = sequence(dx),
                   .dweights = {&gradients, 1}},
                  scratch, stream);
  };
  const double flops = 4.0 * static_cast<double>(t * b) * static_cast<double>(gates * h) * static_cast<double>(h);
  Subject subject{"recurrent", line, "forward", plan.explain().kernel, std::string(name(c.dtype)), flops, 0};
  sink(timed(subject, forward));
  subject.line = line + " graph=1";
  const Captured forward_graph(forward), training_graph(training);
  sink(timed(subject, std::ref(forward_graph)));
  subject.direction = "training", subject.flops = 3 * flops;
  sink(timed(subject, std::ref(training_graph)));
  subject.line = line;
  sink(timed(subject, training));
}

void recurrents(const Sink& sink) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) recurrent({Cell::lstm, 256, 64, 1024, dtype}, sink);
  for (const std::int64_t batch : {1, 16})
    for (const std::int64_t hidden : {256, 1024}) recurrent({Cell::lstm, 256, batch, hidden, DType::bf16}, sink);
  recurrent({Cell::gru, 256, 64, 1024, DType::bf16}, sink);
  recurrent({Cell::tanh, 256, 64, 1024, DType::bf16}, sink);
}

void softmaxes(const Sink& sink) {
  for (const DType dtype : {DType::f32, DType::f16})
    for (const std::int64_t columns : {256, 1024, 4096, 32768, 33708, 131072, 900000, 4000000}) {
      const std::int64_t rows = std::max<std::int64_t>((std::int64_t{1} << 28) / columns, 1);
      const std::string line = "softmax" + words({{"rows", rows}, {"columns", columns}});
      if (!sink.wants(line)) continue;
      const SoftmaxPlan plan({.dtype = dtype}, {rows, columns}, card);
      const Numbers x(dtype, rows, columns), y(dtype, rows, columns), dx(dtype, rows, columns);
      const Buffer scratch(plan.workspace_bytes(), card);
      const double bytes = static_cast<double>(rows * columns) * static_cast<double>(size_of(dtype));
      Subject subject{"softmax", line, "forward", plan.explain().kernel, std::string(name(dtype)), 0, 2 * bytes};
      sink(timed(subject, [&](const Stream& stream) { plan.forward({.x = x.view(), .y = y.view()}, scratch, stream); }));
      subject.direction = "backward", subject.bytes = 3 * bytes;
      sink(timed(subject,
                 [&](const Stream& stream) { plan.backward({.y = y.view(), .dy = x.view(), .dx = dx.view()}, scratch, stream); }));
    }
}

void pointwises(const Sink& sink) {
  constexpr std::int64_t rows = 65536, columns = 4096;
  const char* const names[] = {"copy", "add", "multiply", "scale", "fill", "dropout", "activation"};
  for (const Pointwise operation : {Pointwise::add, Pointwise::dropout, Pointwise::activation}) {
    const bool two = operation == Pointwise::add;
    const PointwisePlan plan({.operation = operation,
                              .dtype = DType::f16,
                              .activation = operation == Pointwise::activation ? Activation::gelu_tanh : Activation::none,
                              .dropout = operation == Pointwise::dropout ? 0.1F : 0},
                             {rows * columns}, card);
    const Numbers a(DType::f16, rows, columns), b(DType::f16, rows, columns), y(DType::f16, rows, columns);
    const double bytes = (two ? 3.0 : 2.0) * rows * columns * 2;
    sink(timed(
        {"pointwise",
         "pointwise operation=" + std::string(names[static_cast<int>(operation)]) + words({{"rows", rows}, {"columns", columns}}),
         "run", plan.explain().kernel, "f16", 0, bytes},
        [&](const Stream& stream) {
          plan.run({.a = a.view(), .b = two ? ConstTensorView(b.view()) : ConstTensorView(), .y = y.view()}, {}, stream);
        }));
  }
}

}  // namespace
}  // namespace everglow::bench

int main(int argc, char** argv) {
  using namespace everglow;
  if (argc < 2) {
    std::cerr << "usage: everglow_cuda_bench OUT.jsonl [copy|linear|recurrent|softmax|pointwise [WORDS OF A CASE]]\n";
    return 2;
  }
  try {
    std::ofstream out(argv[1], std::ios::app);
    const std::string only = argc > 2 ? argv[2] : "";
    const bench::Sink sink{[&](const bench::Record& record) {
                             out << bench::json_line(record) << std::flush;
                             std::printf("%-62s %-4s %-20s %9.1f us %7.1f TFLOP/s %7.0f GB/s\n", record.line.c_str(),
                                         record.dtype.c_str(), record.direction.c_str(), record.median_us,
                                         record.flops / record.median_us / 1e6, record.bytes / record.median_us / 1e3);
                             std::fflush(stdout);
                           },
                           argc > 3 ? argv[3] : ""};
    if (only.empty() || only == "copy") bench::copies(sink);
    if (only.empty() || only == "linear") bench::linears(sink);
    if (only.empty() || only == "recurrent") bench::recurrents(sink);
    if (only.empty() || only == "softmax") bench::softmaxes(sink);
    if (only.empty() || only == "pointwise") bench::pointwises(sink);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
