// What all kinds of `everglow plan` share: the options, the device, and the answer in the form that was asked for.
#pragma once

#include "cli/layer_runs.hpp"

#include <everglow/everglow.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace everglow::cli {

inline constexpr double most_size = 1e12;  // of one dimension; larger ones are typing errors

/// A size as option and as dimension of a sweep: "batch" is --batch.
struct SizeOption {
  std::string name;
  std::int64_t* value = nullptr;
  std::int64_t least = 0;
  double most = most_size;
};

/// The options of one sub-command of `everglow plan`. It lives as long as the tool.
class PlanRequest {
 public:
  /// Adds --device, --dtype, --math, --threads, --kernel, --deterministic and --json.
  PlanRequest(CLI::App& app, std::string layer);
  PlanRequest(const PlanRequest&) = delete;  // the options point into it
  PlanRequest& operator=(const PlanRequest&) = delete;

  /// A size that must be given.
  void size(const SizeOption& option, const std::string& help, const std::string& example);
  /// One that has a default.
  void optional_size(const SizeOption& option, const std::string& help, const std::string& example);
  /// Adds --measure.
  void may_measure();
  /// Throws CLI::ValidationError for a size that was left out and that no sweep gives.
  void require_sizes() const;

  DeviceDescription description_of_device() const;
  PlanOptions options() const;
  DType dtype() const;  ///< f32 on a CPU, f16 on a GPU, or what --dtype says
  bool json() const { return json_; }
  const std::string& layer() const { return layer_; }
  /// The sizes that a sweep may change.
  const std::vector<SizeOption>& sizes() const { return sizes_; }
  /// "f16, on h200 (data sheet)".
  std::string setting_text() const;

  bool measure = false;
  std::string device = "cpu", tile, html;
  std::vector<std::string> sweep;

 private:
  bool swept(const std::string& name) const;

  CLI::App& app_;
  std::string layer_, dtype_, math_ = "ieee", kernel_;
  int threads_ = 0;
  bool deterministic_ = false, json_ = false;
  std::vector<SizeOption> sizes_;
  struct Required {
    const CLI::Option* option;
    std::string text;
  };
  std::vector<Required> required_;
};

/// A device of the table, "cpu", "cuda:N", or a file of JSON (*.json) with the fields of DeviceFigures, `name` and `based_on`.
DeviceDescription read_device(const std::string& name);
/// "256x128". Throws CLI::ValidationError.
std::pair<std::int64_t, std::int64_t> parse_tile(const std::string& text);

/// What a kind of plan brings: its first line, its explanation, and what a second of it is counted in.
struct PlanAnswer {
  std::function<std::string()> title;
  std::function<Explanation(const PlanOptions&)> explain;
  std::string unit;                // "rows"
  std::function<double()> useful;  // how many of them a plan serves
  /// The layer's passes, for --measure.
  std::function<std::vector<PassRun>(OperandMemory&, const PlanOptions&)> runs;
};
/// Prints the plan as a table or as JSON; where --sweep asks for it, once for each of its sizes.
void print_plan(const PlanRequest& request, const PlanAnswer& answer);

void add_plan_linear(CLI::App& plan, int& status);
void add_plan_recurrent(CLI::App& plan, int& status);
void add_plan_attention(CLI::App& plan, int& status);
void add_plan_gnmt(CLI::App& plan, int& status);

}  // namespace everglow::cli
