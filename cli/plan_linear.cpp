// everglow plan linear
#include "cli/arguments.hpp"
#include "cli/plan_request.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <memory>

namespace everglow::cli {
namespace {

struct LinearRequest {
  explicit LinearRequest(CLI::App& app) : common(app, "linear") {}
  PlanRequest common;
  LinearDescription description;
  LinearSizes sizes;
  std::string layout = "pytorch", activation = "none";
  bool inference = false;
};

Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::relu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_erf") return Activation::gelu_erf;
  if (name == "silu") return Activation::silu;
  return Activation::none;
}

LinearDescription description_of(const LinearRequest& request) {
  LinearDescription d = request.description;
  d.dtype = request.common.dtype();
  const bool rows_of_outputs = request.layout == "pytorch" || request.layout == "caffe";
  d.layout = rows_of_outputs ? LinearLayout::outputs_inputs : LinearLayout::inputs_outputs;
  d.activation = activation_of(request.activation);
  d.training = !request.inference;
  return d;
}

Explanation explained(const LinearRequest& request, const PlanOptions& options) {
  return LinearPlan(description_of(request), request.sizes, request.common.description_of_device(), options).explain();
}

std::string title(const LinearRequest& request) {
  return fmt::format("linear {} -> {}, batch {}, layout {}, {}, {}", request.description.inputs, request.description.outputs,
                     request.sizes.batch, request.layout, request.inference ? "inference" : "training",
                     request.common.setting_text());
}

}  // namespace

void add_plan_linear(CLI::App& plan, int& status) {
  CLI::App& app = *plan.add_subcommand("linear", "Explain a fully-connected layer");
  const auto request = std::make_shared<LinearRequest>(app);
  PlanRequest& common = request->common;
  common.size({"batch", &request->sizes.batch, 0}, "Rows of x", "4096");
  common.size({"inputs", &request->description.inputs, 0}, "Columns of x", "1024");
  common.size({"outputs", &request->description.outputs, 0}, "Columns of y", "4096");
  app.add_option("--layout", request->layout,
                 "How W is stored: pytorch or caffe [outputs, inputs], tensorflow, keras or jax [inputs, outputs]")
      ->capture_default_str()
      ->check(one_of({"pytorch", "caffe", "tensorflow", "keras", "jax"}));
  app.add_option("--activation", request->activation, "none, relu, gelu_tanh, gelu_erf or silu")
      ->capture_default_str()
      ->check(one_of({"none", "relu", "gelu_tanh", "gelu_erf", "silu"}));
  app.add_option("--tile", common.tile, "Explain and predict with this tile, MxN (default: the largest, and the best beside it)");
  app.add_flag("--inference", request->inference, "Forward alone");
  request->common.may_measure();
  app.footer("everglow plan linear --batch 5120 --inputs 1024 --outputs 33708 --dtype f16 --device h200");
  app.callback([request, &status] {
    request->common.require_sizes();
    print_plan(request->common, {.title = [request] { return title(*request); },
                                 .explain = [request](const PlanOptions& options) { return explained(*request, options); },
                                 .unit = "rows",
                                 .useful = [request] { return static_cast<double>(request->sizes.batch); },
                                 .runs =
                                     [request](OperandMemory& memory, const PlanOptions& options) {
                                       return linear_runs(memory, description_of(*request), request->sizes, options);
                                     }});
    status = 0;
  });
}

}  // namespace everglow::cli
