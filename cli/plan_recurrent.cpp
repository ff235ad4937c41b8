// everglow plan recurrent
#include "cli/arguments.hpp"
#include "cli/plan_request.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>

namespace everglow::cli {
namespace {

constexpr std::array<const char*, 5> cells = {"lstm", "gru", "gru_reset_before", "tanh", "relu"};
constexpr double most_layers = 1024;

struct RecurrentRequest {
  explicit RecurrentRequest(CLI::App& app) : common(app, "recurrent") {}
  PlanRequest common;
  RecurrentDescription description;
  RecurrentSizes sizes;
  std::string cell = "lstm";
  bool inference = false;
};

RecurrentDescription description_of(const RecurrentRequest& request) {
  RecurrentDescription d = request.description;
  d.dtype = request.common.dtype();
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (request.cell == cells[i]) d.cell = static_cast<Cell>(i);
  d.training = !request.inference;
  return d;
}

Explanation explained(const RecurrentRequest& request, const PlanOptions& options) {
  return RecurrentPlan(description_of(request), request.sizes, request.common.description_of_device(), options).explain();
}

std::string title(const RecurrentRequest& request) {
  const RecurrentDescription& d = request.description;
  std::string text = fmt::format("recurrent {} {} -> {}, {} steps, batch {}", request.cell, d.inputs, d.hidden, request.sizes.steps,
                                 request.sizes.batch);
  if (d.layers > 1) text += fmt::format(", {} layers", d.layers);
  if (d.bidirectional) text += ", both directions";
  if (d.projection > 0) text += fmt::format(", projection {}", d.projection);
  return fmt::format("{}, {}, {}", text, request.inference ? "inference" : "training", request.common.setting_text());
}

void add_sizes(RecurrentRequest& request) {
  PlanRequest& common = request.common;
  common.size({"steps", &request.sizes.steps, 0}, "Steps of a sequence", "256");
  common.size({"batch", &request.sizes.batch, 0}, "Sequences", "64");
  common.size({"inputs", &request.description.inputs, 0}, "Columns of x", "1024");
  common.size({"hidden", &request.description.hidden, 0}, "Hidden units", "1024");
  common.optional_size({"layers", &request.description.layers, 1, most_layers}, "Layers (default 1)", "4");
  common.optional_size({"projection", &request.description.projection, 0}, "Size of h where it is projected, LSTM alone", "512");
}

}  // namespace

void add_plan_recurrent(CLI::App& plan, int& status) {
  CLI::App& app = *plan.add_subcommand("recurrent", "Explain recurrent layers over whole sequences");
  const auto request = std::make_shared<RecurrentRequest>(app);
  app.add_option("--cell", request->cell, "lstm, gru (resets after the product), gru_reset_before, tanh or relu")
      ->capture_default_str()
      ->check(one_of({cells.begin(), cells.end()}));
  add_sizes(*request);
  RecurrentDescription& d = request->description;
  app.add_flag("--bidirectional", d.bidirectional, "Both directions");
  app.add_flag("--lengths", d.lengths, "Rows have lengths of their own");
  app.add_flag("--resets", d.resets, "States are reset inside sequences");
  app.add_flag("--inference", request->inference, "Forward alone");
  request->common.may_measure();
  app.footer("everglow plan recurrent --cell lstm --steps 256 --batch 64 --inputs 1024 --hidden 1024 --dtype f16 --device v100-16");
  app.callback([request, &status] {
    request->common.require_sizes();
    print_plan(request->common, {.title = [request] { return title(*request); },
                                 .explain = [request](const PlanOptions& options) { return explained(*request, options); },
                                 .unit = "sequences",
                                 .useful = [request] { return static_cast<double>(request->sizes.batch); },
                                 .runs =
                                     [request](OperandMemory& memory, const PlanOptions& options) {
                                       return recurrent_runs(memory, description_of(*request), request->sizes, options);
                                     }});
    status = 0;
  });
}

}  // namespace everglow::cli
