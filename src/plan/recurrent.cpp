// Products, times and advice of recurrent layers.
#include "plan/recurrent.hpp"

#include "core/recurrent.hpp"
#include "core/text.hpp"
#include "plan/advice.hpp"
#include "plan/calibration.hpp"
#include "plan/cpu.hpp"
#include "plan/recurrent_cpu.hpp"

#include <algorithm>

namespace everglow::plan {
namespace {

namespace c = calibration;

double real(std::int64_t value) { return static_cast<double>(value); }

/// A tensor of a product and the elements of its rows.
struct Part {
  const char* tensor;
  std::int64_t columns;
};
struct Kind {
  const char *pass, *name;
  bool transpose_a, transpose_b;
  Part a, b, c;
};

/// Of one layer and direction.
class Products {
 public:
  Products(const RecurrentDescription& d, const RecurrentSizes& sizes, const Machine& machine)
      : d_(d), sizes_(sizes), machine_(machine), mixed_(machine), single_(machine) {
    mixed_.costs = mixed_.small = machine.mixed;
    single_.costs = single_.small = machine.single;
    if (machine.cpu) loop_ = cpu_loop(d, sizes, machine);
  }

  void layer(std::int64_t layer, std::int64_t direction) {
    layer_ = layer, direction_ = direction;
    const std::int64_t H = d_.hidden, P = recurrent::outputs_of(d_), I = layer == 0 ? d_.inputs : d_.directions() * P;
    const std::int64_t G = recurrent::gate_count(d_.cell) * H, B = sizes_.batch, T = sizes_.steps, rows = T * B;
    const bool cut = d_.cell == Cell::gru_reset_before, projects = d_.projection > 0;
    const std::int64_t first = cut ? G - H : G;  // a reset before the product cuts a GRU's in two
    add({"forward", "input", true, false, {"w_ih", I}, {"x", I}, {"gates", G}}, {G, rows, I}, 1);
    add({"forward", "recurrent", true, false, {"w_hh", P}, {"h", P}, {"gates", G}}, {first, B, P}, T);
    if (cut) add({"forward", "candidate", true, false, {"w_hh", P}, {"h", P}, {"gates", G}}, {H, B, P}, T);
    if (projects) add({"forward", "projection", true, false, {"w_hr", H}, {"o", H}, {"h", P}}, {P, B, H}, T);
    if (!d_.training) return;
    if (projects) add({"activation_gradient", "projection", false, false, {"w_hr", H}, {"dh", P}, {"do", H}}, {H, B, P}, T);
    if (cut) add({"activation_gradient", "candidate", false, false, {"w_hh", P}, {"dgates", G}, {"dh", P}}, {P, B, H}, T);
    add({"activation_gradient", "recurrent", false, false, {"w_hh", P}, {"dgates", G}, {"dh", P}}, {P, B, first}, T);
    add({"activation_gradient", "input", false, false, {"w_ih", I}, {"dgates", G}, {"dx", I}}, {I, rows, G}, 1);
    add({"weight_gradient", "input", false, true, {"x", I}, {"dgates", G}, {"dw_ih", I}}, {I, G, rows}, 1);
    add({"weight_gradient", "recurrent", false, true, {"h", P}, {"dgates", G}, {"dw_hh", P}}, {P, first, rows}, 1);
    if (cut) add({"weight_gradient", "candidate", false, true, {"h", P}, {"dgates", G}, {"dw_hh", P}}, {P, H, rows}, 1);
    if (projects) add({"weight_gradient", "projection", false, true, {"o", H}, {"dh", P}, {"dw_hr", H}}, {H, P, rows}, 1);
  }
  std::vector<ExplanationGemm> out;

 private:
  void add(const Kind& kind, const Product& p, std::int64_t count) {
    ExplanationGemm& gemm = out.emplace_back();
    gemm.pass = kind.pass, gemm.name = kind.name;
    gemm.m = p.m, gemm.n = p.n, gemm.k = p.k;
    gemm.layer = layer_, gemm.direction = direction_, gemm.count = count;
    gemm.transpose_a = kind.transpose_a, gemm.transpose_b = kind.transpose_b;
    gemm.operands = {operand("a", kind.a.tensor, kind.a.columns, machine_), operand("b", kind.b.tensor, kind.b.columns, machine_),
                     operand("c", kind.c.tensor, kind.c.columns, machine_)};
    explain_product(costs_of(gemm), gemm);
    if (machine_.cpu) on_packed_weights(gemm);
  }

  /// On a CPU the gradients inside a layer are f32: those of the weights meet x or h, the others weights of the dtype.
  const Machine& costs_of(const ExplanationGemm& gemm) const {
    if (!machine_.cpu || gemm.pass == "forward") return machine_;
    return gemm.pass == "weight_gradient" && gemm.name != "input" ? single_ : mixed_;
  }

  /// The products of a CPU's loop, and those over few inputs, read weights that were packed before them.
  void on_packed_weights(ExplanationGemm& gemm) const {
    const bool inputs = gemm.name == "input";
    if (gemm.pass == "weight_gradient" || (inputs && (gemm.pass != "forward" || (machine_.library && gemm.n >= library_rows))))
      return;
    CpuLoop loop = loop_;
    if (inputs) loop.by_rows = true, loop.threads = loop.team = machine_.units;
    const double weights = real(inputs ? gemm.m : recurrent::gate_count(d_.cell) * d_.hidden) * real(gemm.k);
    gemm.floor_us = flops_of({gemm.m, gemm.n, gemm.k}) / machine_.peak;
    const bool stored = gemm.pass == "forward" && (inputs || gemm.name == "recurrent");  // rows of x or h
    const LoopProduct product{real(gemm.n), real(gemm.m), real(gemm.k), !stored};
    if (gemm.time_us > 0) gemm.time_us = std::max(gemm.floor_us, cpu_loop_product_us(loop, machine_, weights, product));
  }

  const RecurrentDescription& d_;
  const RecurrentSizes& sizes_;
  const Machine& machine_;
  Machine mixed_, single_;
  CpuLoop loop_;
  std::int64_t layer_ = 0, direction_ = 0;
};

constexpr std::int64_t persistent_hidden = 1024;  // cuDNN's largest, see peers.cpp

bool is_step(const ExplanationGemm& gemm) { return gemm.name != "input" && gemm.pass != "weight_gradient"; }

/// Whose loop is predicted.
enum class LoopOf { cpu, resident, cudnn_persistent, standard };

LoopOf loop_of(const RecurrentDescription& d, const RecurrentSizes& sizes, const DeviceFigures& figures, std::string_view kernel) {
  if (figures.capability == 0) return LoopOf::cpu;
  if (kernel.find("resident") != std::string_view::npos) return LoopOf::resident;
  const bool persists = kernel.empty() && recurrent_peers(d, sizes, figures).front().eligible;
  return persists ? LoopOf::cudnn_persistent : LoopOf::standard;
}

struct Loop {
  LoopOf of = LoopOf::standard;
  double step_us = 0;  // where it stays on chip
};
struct Times {
  double forward_us = 0, backward_us = 0, floor_us = 0;
  double time_us() const { return forward_us + backward_us; }
};

/// A CPU's layers beside their products over all steps; layers above the first are alike.
void add_cpu_layers(Times& out, const RecurrentDescription& d, const RecurrentSizes& sizes, const Machine& machine) {
  const std::int64_t above = d.directions() * recurrent::outputs_of(d);
  const CpuPasses first = cpu_layer(d, sizes, d.inputs, machine), other = cpu_layer(d, sizes, above, machine);
  out.forward_us += first.forward_us + real(d.layers - 1) * other.forward_us;
  out.backward_us += first.backward_us + real(d.layers - 1) * other.backward_us;
}

Times times_of(const std::vector<ExplanationGemm>& gemms, const RecurrentDescription& d, const RecurrentSizes& sizes,
               const Machine& machine, const Loop& loop) {
  Times out;
  double steps_forward = 0, steps_backward = 0;
  const double T = real(sizes.steps), layers = real(d.layers), directions = real(d.directions());
  const bool gemms_of_two_layers = d.layers > 2 && gemms.back().layer == 1;
  for (const ExplanationGemm& gemm : gemms) {
    // Layers above the first are alike; a search leaves out all but one of them.
    const double alike = gemm.layer == 0 ? 1 : layers - 1;
    const double count = real(gemm.count) * (gemms_of_two_layers ? alike : 1);
    const bool step = is_step(gemm);
    // A loop that keeps R on chip reads it once: only its arithmetic bounds it.
    const double math = 2 * real(gemm.m) * real(gemm.n) * real(gemm.k) / machine.peak;
    out.floor_us += count * (step ? math : gemm.floor_us);
    const bool forward = gemm.pass == "forward";
    double& sum = step ? forward ? steps_forward : steps_backward : forward ? out.forward_us : out.backward_us;
    sum += count * gemm.time_us;
  }
  if (sizes.batch == 0 || d.hidden == 0) return out;  // no step runs
  const auto add = [&](double step, double backward) {
    out.forward_us += T * layers * step;
    if (d.training) out.backward_us += T * layers * step * backward;
  };
  if (loop.of == LoopOf::cpu) {
    add_cpu_layers(out, d, sizes, machine);
  } else if (loop.of == LoopOf::standard) {
    const double all = T * layers * directions;
    out.forward_us += std::max(all * c::standard_step_us, steps_forward + all * c::standard_gates_us);
    if (d.training) out.backward_us += std::max(all * c::standard_backward_us, steps_backward + all * c::standard_gates_us);
  } else if (loop.of == LoopOf::cudnn_persistent) {
    const double rows = real(std::max<std::int64_t>(sizes.batch - c::persist_rows, 0));
    const double products = 2 * real(recurrent::gate_count(d.cell)) * real(d.hidden) * real(d.hidden) * real(sizes.batch);
    const double step =
        std::max(c::persist_us + c::persist_us_per_unit * real(d.hidden) + c::persist_us_per_row * rows, products / machine.rate);
    add(directions * step, c::backward_step);
  } else {
    add(loop.step_us, c::backward_step);  // both directions run side by side on halves of a GPU
  }
  return out;
}

/// What one choice of sizes costs, for the search.
double time_at(const RecurrentDescription& d, const RecurrentSizes& sizes, const DeviceFigures& figures, const Machine& machine,
               std::string_view kernel) {
  const LoopOf loop = loop_of(d, sizes, figures, kernel);
  const double step = loop == LoopOf::resident ? residency_of(d, sizes, figures, machine).step_us : 0;
  RecurrentDescription two = d;
  two.layers = std::min<std::int64_t>(d.layers, 2);
  return times_of(recurrent_gemms(two, sizes, machine), d, sizes, machine, {loop, step}).time_us();
}

/// Larger sizes whose rows are aligned, and multiples of 32 ... 128 that persistent kernels ask for.
std::vector<std::int64_t> hidden_candidates(std::int64_t hidden, std::int64_t on_chip, const Machine& machine) {
  std::vector<std::int64_t> out = aligned_sizes(hidden, machine.element);
  for (const std::int64_t unit : {32, 64, 128}) {
    const std::int64_t up = (hidden + unit - 1) / unit * unit;
    if (up > hidden && 8 * (up - hidden) <= hidden) out.push_back(up);
  }
  if (on_chip < hidden && 8 * (hidden - on_chip) <= hidden) out.push_back(on_chip);  // a little less may stay on chip
  const auto distance = [&](std::int64_t to) { return to > hidden ? to - hidden : hidden - to; };
  std::sort(out.begin(), out.end(), [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

std::vector<ExplanationGemm> recurrent_gemms(const RecurrentDescription& d, const RecurrentSizes& sizes, const Machine& machine) {
  Products products(d, sizes, machine);
  for (std::int64_t layer = 0; layer < d.layers; ++layer)
    for (std::int64_t direction = 0; direction < d.directions(); ++direction) products.layer(layer, direction);
  return std::move(products.out);
}

namespace {

std::vector<ExplanationAdvice> advice_of(const RecurrentDescription& d, const RecurrentSizes& sizes, const DeviceFigures& figures,
                                         const Machine& machine, const Explanation& known) {
  std::vector<ExplanationAdvice> out;
  const auto at = [&](const RecurrentDescription& other, const RecurrentSizes& other_sizes) {
    return time_at(other, other_sizes, figures, machine, known.kernel);
  };
  const auto changed = [&](std::int64_t RecurrentDescription::*size) {
    return [&, size](std::int64_t to) {
      RecurrentDescription other = d;
      other.*size = to;
      return at(other, sizes);
    };
  };
  const bool stays = known.residency->resident;
  const bool vendor = !machine.cpu && known.kernel.find("resident") == std::string::npos;
  const std::int64_t on_chip = vendor  ? std::min<std::int64_t>(persistent_hidden, known.residency->largest_hidden)
                               : stays ? d.hidden
                                       : known.residency->largest_hidden;
  const bool persists = loop_of(d, sizes, figures, known.kernel) == LoopOf::cudnn_persistent;
  advise({.kind = "size", .dimension = "hidden", .from = d.hidden, .to = d.hidden},
         hidden_candidates(d.hidden, persists ? d.hidden : on_chip, machine), changed(&RecurrentDescription::hidden), out);
  if (!out.empty()) {
    RecurrentDescription other = d;
    other.hidden = out.back().to;
    const bool then = loop_of(other, sizes, figures, known.kernel) == LoopOf::cudnn_persistent;
    out.back().reason = then && !persists         ? text("cuDNN keeps the recurrent matrix of hidden ", other.hidden, " on chip")
                        : other.hidden < d.hidden ? text("the recurrent matrix of hidden ", other.hidden, " stays on chip")
                                                  : text("rows of w_hh, h and gates are better aligned");
  }
  const std::size_t before_inputs = out.size();
  advise({.kind = "size", .dimension = "inputs", .from = d.inputs, .to = d.inputs}, aligned_sizes(d.inputs, machine.element),
         changed(&RecurrentDescription::inputs), out);
  if (out.size() > before_inputs) out.back().reason = "rows of x and w_ih are better aligned";
  if (sizes.batch > 0) {
    const std::size_t before = out.size();
    advise(
        {.kind = "size", .dimension = "batch", .from = sizes.batch, .to = sizes.batch}, larger_batches(sizes.batch),
        [&](std::int64_t to) {
          return at(d, {sizes.steps, to}) * real(sizes.batch) / real(to);
        },
        out);
    if (out.size() > before) out.back().reason = text("per row: a step serves ", out.back().to, " rows instead of ", sizes.batch);
  }
  sort_best_first(out);
  return out;
}

}  // namespace

void explain_recurrent(const RecurrentDescription& d, const RecurrentSizes& sizes, const DeviceFigures& figures,
                       const Machine& machine, Explanation& out) {
  out.gemms = recurrent_gemms(d, sizes, machine);
  out.residency = residency_of(d, sizes, figures, machine);
  out.peers = recurrent_peers(d, sizes, figures);
  const LoopOf loop = loop_of(d, sizes, figures, out.kernel);
  const Times times = times_of(out.gemms, d, sizes, machine, {loop, out.residency->step_us});
  out.time_us = times.time_us();
  out.passes.push_back({"forward", times.forward_us});
  if (d.training) out.passes.push_back({"backward", times.backward_us});
  out.floor_us = times.floor_us;
  if (machine.advice) out.advice = advice_of(d, sizes, figures, machine, out);
}

}  // namespace everglow::plan
