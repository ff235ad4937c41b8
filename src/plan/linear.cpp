// Products and advice of the fully-connected layer.
#include "plan/linear.hpp"

#include "core/text.hpp"
#include "plan/advice.hpp"
#include "plan/cpu.hpp"

#include <algorithm>
#include <iomanip>

namespace everglow::plan {
namespace {

struct Operands {
  const char *a, *b, *c;
  bool transpose_a, transpose_b;
  bool a_of_outputs, b_of_outputs, c_of_outputs;  // rows of `outputs` elements, else of `inputs`
};
// Index: forward, activation gradient, weight gradient.
constexpr Operands outputs_inputs[] = {{"weight", "x", "y", true, false, false, false, true},
                                       {"weight", "dy", "dx", false, false, false, true, false},
                                       {"x", "dy", "dweight", false, true, false, true, false}};
constexpr Operands inputs_outputs[] = {{"weight", "x", "y", false, false, true, false, true},
                                       {"weight", "dy", "dx", true, false, true, true, false},
                                       {"dy", "x", "dweight", false, true, true, false, true}};
constexpr const char* passes[] = {"forward", "activation_gradient", "weight_gradient"};

Product sizes_of(const LinearDescription& d, std::int64_t batch, int pass) {
  if (pass == 0) return {d.outputs, batch, d.inputs};
  if (pass == 1) return {d.inputs, batch, d.outputs};
  if (d.layout == LinearLayout::outputs_inputs) return {d.inputs, d.outputs, batch};
  return {d.outputs, d.inputs, batch};
}

const Operands& operands_of(const LinearDescription& d, int pass) {
  return d.layout == LinearLayout::outputs_inputs ? outputs_inputs[pass] : inputs_outputs[pass];
}

struct ActivationTimes {
  double forward = 0, backward = 0;
  double sum() const { return forward + backward; }
};

/// What an activation adds on a CPU: forward while y is in cache, on the way back with a product of dy in memory. A GPU's stands
/// in the epilogues.
ActivationTimes activation_us(const LinearDescription& d, std::int64_t batch, const Machine& machine) {
  if (!machine.cpu || d.activation == Activation::none) return {};
  const double elements = static_cast<double>(batch) * static_cast<double>(d.outputs);
  const double work = d.activation == Activation::relu ? 0 : elements * machine.core.exponential_ns / 1000 / machine.speedup;
  const double bytes = elements * static_cast<double>(machine.element);
  const double kept = d.training ? cpu_stream_us(machine, bytes) : 0;  // z, which backward reads
  return {work + kept, d.training ? machine.overhead_us + work + cpu_stream_us(machine, 3 * bytes) : 0};
}

/// Time of all products; what linear_gemms says, without its words.
double time_at(const LinearDescription& d, std::int64_t batch, const Machine& machine, const LinearStrides& strides) {
  const std::int64_t in = std::max(d.inputs, strides.inputs) * machine.element;
  const std::int64_t out = std::max(d.outputs, strides.outputs) * machine.element;
  double sum = 0;
  for (int pass = 0; pass < (d.training ? 3 : 1); ++pass) {
    const Operands& o = operands_of(d, pass);
    const auto bytes = [&](bool of_outputs) { return alignment_of(of_outputs ? out : in); };
    Product p = sizes_of(d, batch, pass);
    p.pass = static_cast<Pass>(pass);
    p.alignment = std::min({bytes(o.a_of_outputs), bytes(o.b_of_outputs), bytes(o.c_of_outputs)});
    sum += predict(machine, p).time_us;
  }
  return sum + activation_us(d, batch, machine).sum();
}

/// "x, dx and weight": the tensors whose rows have this many elements.
std::string tensors_of(const LinearDescription& d, bool outputs) {
  const bool weight = outputs == (d.layout == LinearLayout::inputs_outputs);
  const std::string plain = outputs ? "y" : "x", gradient = outputs ? "dy" : "dx";
  if (!d.training) return weight ? plain + " and weight" : plain;
  return weight ? plain + ", " + gradient + ", weight and dweight" : plain + " and " + gradient;
}

std::string aligned_reason(const std::string& tensors, std::int64_t from, std::int64_t bytes) {
  return text("rows of ", tensors, " are ", from, " bytes apart, then multiples of ", bytes, " bytes");
}

void advise_rows(const LinearDescription& d, std::int64_t batch, const Machine& machine, bool outputs,
                 std::vector<ExplanationAdvice>& out) {
  const std::int64_t from = outputs ? d.outputs : d.inputs;
  const auto candidates = aligned_sizes(from, machine.element);
  const ExplanationAdvice wanted{.kind = "size", .dimension = outputs ? "outputs" : "inputs", .from = from, .to = from};
  const std::size_t old = out.size();
  advise(
      wanted, candidates,
      [&](std::int64_t to) {
        LinearDescription other = d;
        (outputs ? other.outputs : other.inputs) = to;
        return time_at(other, batch, machine, {});
      },
      out);
  ExplanationAdvice stride = wanted;
  stride.kind = "stride";
  advise(
      stride, candidates,
      [&](std::int64_t to) {
        return time_at(d, batch, machine, outputs ? LinearStrides{0, to} : LinearStrides{to, 0});
      },
      out);
  for (std::size_t i = old; i < out.size(); ++i) {
    const std::int64_t bytes = std::min(alignment_of(out[i].to * machine.element), std::max<std::int64_t>(machine.alignment, 1));
    out[i].reason = aligned_reason(tensors_of(d, outputs), from * machine.element, bytes);
    if (out[i].kind == "stride") out[i].reason += "; the sizes stay, rows stand further apart";
  }
}

void advise_batch(const LinearDescription& d, std::int64_t batch, const Machine& machine, std::vector<ExplanationAdvice>& out) {
  if (batch == 0) return;
  const std::size_t old = out.size();
  advise(
      {.kind = "size", .dimension = "batch", .from = batch, .to = batch}, larger_batches(batch),
      [&](std::int64_t to) { return time_at(d, to, machine, {}) * static_cast<double>(batch) / static_cast<double>(to); }, out);
  if (out.size() == old) return;
  ExplanationAdvice& added = out.back();
  const Product before = sizes_of(d, batch, 0), after = sizes_of(d, added.to, 0);
  if (intensity_of(before, machine.element) < ridge_of(machine)) {
    added.reason = text("per row: the weights are read once for ", added.to, " rows instead of ", batch);
    return;
  }
  const ExplanationTile tile = predict(machine, before).tile;
  added.reason = text("per row: forward fills ", std::fixed, std::setprecision(2), waves_of(machine, after, tile),
                      " waves of tiles instead of ", waves_of(machine, before, tile));
}

}  // namespace

std::vector<ExplanationGemm> linear_gemms(const LinearDescription& d, std::int64_t batch, const Machine& machine,
                                          const LinearStrides& strides) {
  const std::int64_t in = std::max(d.inputs, strides.inputs), rows = std::max(d.outputs, strides.outputs);
  std::vector<ExplanationGemm> out;
  for (int pass = 0; pass < (d.training ? 3 : 1); ++pass) {
    const Operands& o = operands_of(d, pass);
    const Product p = sizes_of(d, batch, pass);
    ExplanationGemm& gemm = out.emplace_back();
    gemm.pass = passes[pass], gemm.name = "linear";
    gemm.m = p.m, gemm.n = p.n, gemm.k = p.k;
    gemm.transpose_a = o.transpose_a, gemm.transpose_b = o.transpose_b;
    gemm.operands = {operand("a", o.a, o.a_of_outputs ? rows : in, machine), operand("b", o.b, o.b_of_outputs ? rows : in, machine),
                     operand("c", o.c, o.c_of_outputs ? rows : in, machine)};
    explain_product(machine, gemm);
  }
  return out;
}

std::vector<ExplanationAdvice> linear_advice(const LinearDescription& d, std::int64_t batch, const Machine& machine) {
  std::vector<ExplanationAdvice> out;
  advise_rows(d, batch, machine, true, out);
  advise_rows(d, batch, machine, false, out);
  advise_batch(d, batch, machine, out);
  sort_best_first(out);
  return out;
}

void explain_linear(const LinearDescription& d, std::int64_t batch, const Machine& machine, Explanation& out) {
  out.gemms = linear_gemms(d, batch, machine);
  if (machine.advice) out.advice = linear_advice(d, batch, machine);
  const ActivationTimes activation = activation_us(d, batch, machine);
  for (const ExplanationGemm& gemm : out.gemms) {
    // The gradient of the activation is made before both products: it stands with the first.
    const double more = gemm.pass == passes[0] ? activation.forward : gemm.pass == passes[1] ? activation.backward : 0;
    out.passes.push_back({gemm.pass, gemm.time_us + more});
  }
  out.time_us = time_of(out.gemms) + activation.sum();
  out.floor_us = floor_of(out.gemms);
}

}  // namespace everglow::plan
