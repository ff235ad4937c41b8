// everglow plan gnmt
#include "cli/arguments.hpp"
#include "cli/plan_json.hpp"
#include "cli/plan_request.hpp"
#include "cli/plan_sweep.hpp"
#include "cli/plan_table.hpp"

#include <everglow/gnmt/plan.hpp>

#include <fmt/format.h>

#include <memory>

namespace everglow::cli {
namespace {

struct ModelRequest {
  explicit ModelRequest(CLI::App& app) : common(app, "gnmt") {}
  PlanRequest common;
  gnmt::ModelDescription description{.hidden = 1024, .layers = 4, .vocabulary = 0};
  gnmt::ModelSizes sizes;
};

gnmt::ModelExplanation explained(const ModelRequest& request, const PlanOptions& options) {
  gnmt::ModelDescription d = request.description;
  d.dtype = request.common.dtype();
  return gnmt::explain(d, request.sizes, request.common.description_of_device(), options);
}

std::string title(const ModelRequest& request) {
  const gnmt::ModelDescription& d = request.description;
  return fmt::format("gnmt {0} + {0} layers of {1}, {2} words, batch {3} of {4} tokens a side, training, {5}", d.layers, d.hidden,
                     d.vocabulary, request.sizes.batch, request.sizes.length, request.common.setting_text());
}

std::string kernel_of(const Explanation& e) { return e.kernel.empty() ? "none of ours" : e.kernel; }

/// What an item loses its time to.
std::string loss_reason(const Explanation& e) {
  if (e.residency) {
    const double step = e.residency->step_us;
    return fmt::format("one step after another; {} a step where the recurrent matrix stays on chip", time_text(step));
  }
  for (const ExplanationGemm& g : e.gemms)
    if (g.alignment_bytes < e.alignment_needed)
      return fmt::format("rows are multiples of {} bytes, {} are needed", g.alignment_bytes, e.alignment_needed);
  if (e.gemms.empty()) return "bound by memory";
  return fmt::format("{} bound; tiles and waves leave part of the device idle", e.gemms.front().bound);
}

std::string model_text(const ModelRequest& request, const gnmt::ModelExplanation& m) {
  const auto bytes = [](std::int64_t value) { return bytes_text(static_cast<double>(value)); };
  std::string out = wrapped(title(request), 2) + "\n";
  out += fmt::format("parameters        {}\n", m.parameters);
  const std::string parts =
      fmt::format("{}: weights {}, gradients {}, optimizer {}, activations {}", bytes(m.memory.peak), bytes(m.memory.weights),
                  bytes(m.memory.gradients), bytes(m.memory.optimizer), bytes(m.memory.activations));
  out += fmt::format("memory            {}\n", wrapped(parts, 18));
  out += fmt::format("step              {} predicted, floor {}\n", time_text(m.time_us), time_text(m.floor_us));
  out += fmt::format("speed             {:.0f} source + target tokens a second\n\n", m.tokens_per_second);
  std::vector<std::vector<std::string>> rows{{"part", "kernel", "parameters", "time", "of all", "floor"}};
  for (const gnmt::ModelItem& item : m.items) {
    const Explanation& e = item.explanation;
    rows.push_back({item.name, kernel_of(e), fmt::format("{}", item.parameters), time_text(e.time_us),
                    fmt::format("{:.1f}%", m.time_us > 0 ? 100 * e.time_us / m.time_us : 0), time_text(e.floor_us)});
  }
  out += aligned_table(rows, 2) + "\nmost time lost\n";
  int count = 0;
  for (const std::size_t i : m.worst) {
    const gnmt::ModelItem& item = m.items[i];
    out += fmt::format("  {}. {}\n", ++count,
                       wrapped(fmt::format("{}: {}, floor {}; {}", item.name, time_text(item.explanation.time_us),
                                           time_text(item.explanation.floor_us), loss_reason(item.explanation)),
                               5));
  }
  return out + advice_text(m.advice);
}

Json model_json(const gnmt::ModelExplanation& m) {
  Json out{
      {"schema_version", plan_schema_version}, {"layer", "gnmt"}, {"device", m.device}, {"dtype", m.dtype}, {"kernel", nullptr}};
  out["figures"] = m.items.empty() ? "" : m.items.front().explanation.figures;
  out["time_us"] = m.time_us, out["floor_us"] = m.floor_us;
  out["tokens_per_second"] = m.tokens_per_second;
  out["parameters"] = m.parameters;
  out["memory"] = Json{{"weights_bytes", m.memory.weights},
                       {"gradients_bytes", m.memory.gradients},
                       {"optimizer_bytes", m.memory.optimizer},
                       {"activations_bytes", m.memory.activations},
                       {"peak_bytes", m.memory.peak}};
  Json items = Json::array(), gemms = Json::array(), worst = Json::array(), advice = Json::array();
  for (std::size_t i = 0; i < m.items.size(); ++i) {
    Json item{{"name", m.items[i].name}, {"parameters", m.items[i].parameters}};
    Json plan = explanation_json(m.items[i].explanation);
    for (Json gemm : plan["gemms"]) {
      // In the model's list the layer is the item, and what the product belongs to stands before its name where it is a recurrent
      // one.
      gemm["layer"] = i;
      if (gemm["name"] == "linear") gemm["name"] = m.items[i].name;
      gemms.push_back(std::move(gemm));
    }
    plan.erase("gemms"), plan.erase("advice");
    item.update(plan);
    items.push_back(std::move(item));
  }
  for (const std::size_t i : m.worst)
    worst.push_back(Json{{"name", m.items[i].name},
                         {"time_us", m.items[i].explanation.time_us},
                         {"floor_us", m.items[i].explanation.floor_us},
                         {"reason", loss_reason(m.items[i].explanation)}});
  for (const ExplanationAdvice& a : m.advice) advice.push_back(advice_json(a));
  out["items"] = std::move(items), out["worst"] = std::move(worst), out["gemms"] = std::move(gemms),
  out["advice"] = std::move(advice);
  return out;
}

void sweep_model(const ModelRequest& request) {
  PlanOptions options = request.common.options();
  options.advice = false;
  double ridge = 0;
  Sweep sweep = run_sweep(
      request.common, [&] { return title(request); }, "tokens",
      [&] {
        const gnmt::ModelExplanation m = explained(request, options);
        PlanPoint sum;
        for (const gnmt::ModelItem& item : m.items) {
          const PlanPoint part = point_of(item.explanation, 0);
          sum.flops += part.flops, sum.bytes += part.bytes;
          if (!item.explanation.gemms.empty()) ridge = item.explanation.gemms.front().ridge;
        }
        sum.time_us = m.time_us, sum.floor_us = m.floor_us, sum.per_second = m.tokens_per_second;
        return sum;
      });
  sweep.bandwidth_gbs = request.common.description_of_device().figures.bandwidth_gbs;
  sweep.peak_tflops = ridge * sweep.bandwidth_gbs / 1000;
  print_sweep(sweep, request.common);
}

}  // namespace

void add_plan_gnmt(CLI::App& plan, int& status) {
  CLI::App& app = *plan.add_subcommand("gnmt", "Explain a training step of the translation model");
  const auto request = std::make_shared<ModelRequest>(app);
  gnmt::ModelDescription& d = request->description;
  PlanRequest& common = request->common;
  constexpr double most_layers = 64;
  common.size({"vocab", &d.vocabulary, 1}, "Words of the joint vocabulary", "32320");
  common.size({"batch", &request->sizes.batch, 0}, "Sentence pairs", "128");
  common.size({"length", &request->sizes.length, 0}, "Tokens of each side", "50");
  common.optional_size({"hidden", &d.hidden, 1}, "Hidden units (default 1024)", "1024");
  common.optional_size({"layers", &d.layers, 1, most_layers}, "Layers of the encoder and of the decoder (default 4)", "4");
  app.footer("everglow plan gnmt --hidden 1024 --layers 4 --vocab 32320 --batch 128 --length 50 --dtype f16 --device h200");
  app.callback([request, &status] {
    request->common.require_sizes();
    if (!request->common.sweep.empty()) {
      sweep_model(*request);
    } else {
      const gnmt::ModelExplanation m = explained(*request, request->common.options());
      if (request->common.json())
        fmt::print("{}\n", model_json(m).dump(2));
      else
        fmt::print("{}", model_text(*request, m));
    }
    status = 0;
  });
}

}  // namespace everglow::cli
