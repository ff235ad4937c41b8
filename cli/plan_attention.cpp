// everglow plan attention
#include "cli/arguments.hpp"
#include "cli/plan_request.hpp"
#include "cli/plan_table.hpp"

#include <fmt/format.h>

#include <memory>

namespace everglow::cli {
namespace {

struct AttentionRequest {
  explicit AttentionRequest(CLI::App& app) : common(app, "attention") {}
  PlanRequest common;
  AttentionDescription description;
  AttentionSizes sizes;
  std::vector<std::int64_t> window;
  bool inference = false;
};

AttentionDescription description_of(const AttentionRequest& request) {
  AttentionDescription d = request.description;
  d.dtype = request.common.dtype();
  d.training = !request.inference;
  if (!request.window.empty()) d.window_left = request.window.front(), d.window_right = request.window.back();
  return d;
}

Explanation explained(const AttentionRequest& request, const PlanOptions& options) {
  return AttentionPlan(description_of(request), request.sizes, request.common.description_of_device(), options).explain();
}

std::string title(const AttentionRequest& request) {
  const AttentionDescription& d = request.description;
  std::string text = fmt::format("attention batch {}, {} queries, {} keys, {} heads", request.sizes.batch, request.sizes.queries,
                                 request.sizes.keys, d.heads);
  if (d.kv_heads > 0) text += fmt::format(" on {} of keys", d.kv_heads);
  text += fmt::format(" of {}", d.head_dim);
  if (d.value_dim > 0) text += fmt::format(" (values {})", d.value_dim);
  if (d.causal) text += ", causal";
  if (!request.window.empty()) text += fmt::format(", window {}", fmt::join(request.window, ", "));
  return fmt::format("{}, {}, {}", text, request.inference ? "inference" : "training", request.common.setting_text());
}

void add_sizes(AttentionRequest& request) {
  PlanRequest& common = request.common;
  common.size({"batch", &request.sizes.batch, 0}, "Sequences", "8");
  common.size({"queries", &request.sizes.queries, 0}, "Queries of a sequence", "2048");
  common.size({"keys", &request.sizes.keys, 0}, "Keys of a sequence", "2048");
  common.size({"heads", &request.description.heads, 1}, "Heads of the queries", "16");
  common.size({"head-dim", &request.description.head_dim, 1}, "Columns of a head", "128");
  common.optional_size({"kv-heads", &request.description.kv_heads, 0}, "Heads of keys and values, 0: as the queries", "4");
  common.optional_size({"value-dim", &request.description.value_dim, 0}, "Columns of a head of values, 0: as --head-dim", "128");
}

}  // namespace

void add_plan_attention(CLI::App& plan, int& status) {
  CLI::App& app = *plan.add_subcommand("attention", "Explain scaled dot-product attention");
  const auto request = std::make_shared<AttentionRequest>(app);
  add_sizes(*request);
  AttentionDescription& d = request->description;
  app.add_flag("--causal", d.causal, "A query sees the keys up to its own, aligned at the last");
  app.add_option("--window", request->window,
                 "Keys seen to the left of the diagonal, and to the right where a second number is given; -1: all")
      ->expected(1, 2)
      ->check(whole(-1, "--window 1024", most_size));
  app.add_flag("--inference", request->inference, "Forward alone");
  request->common.may_measure();
  app.footer(
      "everglow plan attention --batch 4 --queries 4096 --keys 4096 --heads 16 --head-dim 128 --causal --dtype bf16 --device h200");
  app.callback([request, &status] {
    request->common.require_sizes();
    print_plan(request->common, {.title = [request] { return title(*request); },
                                 .explain = [request](const PlanOptions& options) { return explained(*request, options); },
                                 .unit = "sequences",
                                 .useful = [request] { return static_cast<double>(request->sizes.batch); },
                                 .runs =
                                     [request](OperandMemory& memory, const PlanOptions& options) {
                                       return attention_runs(memory, description_of(*request), request->sizes, options);
                                     }});
    status = 0;
  });
}

}  // namespace everglow::cli
