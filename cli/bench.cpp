// everglow bench: times every row of a layer on a CPU or a card, or the translation model, in turn within one run; compares two
// such runs.
#include "bench/story.hpp"
#include "cli/arguments.hpp"
#include "cli/bar.hpp"
#include "cli/bench_compare.hpp"
#include "cli/bench_report.hpp"
#include "cli/commands.hpp"
#include "cli/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace everglow::cli {
namespace {

constexpr double mebibyte = 1024 * 1024;

struct BenchArguments {
  bench::Request request;
  std::map<std::string, std::string> fields;  // of an explicit problem
  std::string device;                         // empty: the CPU, or for the story the first card
  double rotate = -1;                         // MiB; below 0: by the device
  double seconds = -1;                        // below 0: by the device
  bool list = false, story = false;
};

std::string flag_of(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// The problem that the flags describe: all sizes, in the order of the case lines.
std::string explicit_line(const BenchArguments& a, const bench::Layer& layer) {
  std::string line(layer.name), missing;
  const auto add = [&](std::string_view key) {
    const auto field = a.fields.find(std::string(key));
    if (field != a.fields.end() && !field->second.empty()) line += fmt::format(" {}={}", key, field->second);
    return field != a.fields.end() && !field->second.empty();
  };
  for (const std::string_view size : layer.sizes)
    if (!add(size)) missing += (missing.empty() ? "" : ", ") + flag_of(size);
  if (!missing.empty()) bench::wrong(fmt::format("expected all sizes of the problem, {} too", missing));
  for (const std::string_view option : layer.options) add(option);
  return line;
}

/// The device, and what follows from it where the user does not say.
void prepare(BenchArguments& a) {
  bench::Settings& settings = a.request.settings;
  const Device device = parse_device(a.device.empty() ? (a.story ? "cuda:0" : "cpu") : a.device);
  const bool on_card = device.kind == DeviceKind::cuda;
  if (settings.graphs && !on_card) bench::wrong("--graphs: expected --device cuda:N, got cpu");
  if (a.story && !on_card) bench::wrong("--story: expected --device cuda:N, got cpu");
  if (on_card && a.request.layer == "gnmt") bench::wrong("--device: expected cpu, where the translation model is timed");
  if (a.list)
    settings.device.device = device;
  else if (on_card)
    bench::open_device(settings, device);
  else
    settings.device = described_cpu();
  if (settings.threads == 0) settings.threads = default_threads();
  a.request.timing.seconds = a.seconds >= 0 ? a.seconds : on_card ? 0.1 : 1;
  settings.rotate_bytes = a.rotate >= 0 ? static_cast<std::int64_t>(a.rotate * mebibyte) : bench::rotation_of(settings.device);
}

/// A bar on the terminal.
bench::Progress progress_of(CountBar& bar) {
  return {.show = [&bar](std::int64_t done, const std::string& what) { bar.show(done, what); }, .erase = [&bar] { bar.erase(); }};
}

/// The story has its own sizes; of the options of a problem it takes the dtype.
std::string story_dtype(const BenchArguments& a) {
  std::string out = "f16";
  for (const auto& [key, value] : a.fields) {
    if (!a.story || value.empty()) continue;
    if (key != "dtype" || value == "f32")
      bench::wrong(fmt::format("--story: expected no {} {}; f16 and bf16 can be told", flag_of(key), value));
    out = value;
  }
  return out;
}

int run_bench(BenchArguments a) {
  try {
    const bool given = std::any_of(a.fields.begin(), a.fields.end(), [](const auto& field) { return !field.second.empty(); });
    for (const bench::Layer& layer : bench::benchmarked_layers())
      if (given && !a.story && layer.name == a.request.layer) a.request.explicit_line = explicit_line(a, layer);
    const std::string dtype = story_dtype(a);
    prepare(a);
    const std::vector<cases::Case> all = a.story ? bench::story_lines(a.request.filter, dtype) : bench::chosen_cases(a.request);
    CountBar bar(stderr, "case", std::ssize(all));
    if (a.list)
      for (const cases::Case& c : all) fmt::print("{}\n", bench::without_tags(c.line));
    else if (a.story)
      bench::tell_story(a.request, dtype, progress_of(bar));
    else
      bench::time_cases(a.request, all, progress_of(bar));
  } catch (const std::invalid_argument& error) {
    bench::wrong(error.what());  // a case line that cannot be timed
  }
  return 0;
}

std::string known_kernel(const std::string& layer, const std::string& kernel) {
  std::vector<std::string> known;
  for (const bench::Layer& of : bench::benchmarked_layers())
    if (bench::has_table(of.name) && (layer.empty() || of.name == layer))
      for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda})
        for (const std::string& name : kernels(of.name, kind)) known.push_back(name);
  if (std::find(known.begin(), known.end(), kernel) != known.end()) return {};
  return fmt::format("expected one of {}, got \"{}\"; for example {}", fmt::join(known, ", "), kernel, known.front());
}

std::string wrong_device(std::string& text) {
  try {
    parse_device(text);
    return {};
  } catch (const Error&) {
    return fmt::format("expected cpu or cuda:N, got \"{}\"", text);
  }
}

void add_common(CLI::App& app, const std::shared_ptr<BenchArguments>& a) {
  bench::Request& r = a->request;
  if (r.layer.empty() || bench::has_table(r.layer))
    app.add_option("--kernel", r.settings.rows, "Only this row; may be given again. Without it: all that accept, and the reference")
        ->type_name("NAME")
        ->check(CLI::Validator([layer = r.layer](std::string& name) { return known_kernel(layer, name); }, ""));
  app.add_option("--direction", r.direction, "Only forward, backward, forward_backward, run, step, train, evaluate, ...")
      ->type_name("NAME");
  app.add_option("--tag", r.tag, "Built-in cases with this tag: bench (on a CPU), card (on a card), headline, users (their shapes)")
      ->type_name("TAG")
      ->check(one_of({"bench", "card", "headline", "users"}));
  app.add_option("--device", a->device, "cpu or cuda:N")->type_name("DEVICE")->check(CLI::Validator(wrong_device, ""));
  app.add_option("--filter", r.filter, "Only built-in cases whose line holds the text")->type_name("TEXT");
  app.add_flag("--list", a->list, "Show the cases and stop");
  app.add_option("--threads", r.settings.threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  app.add_option("--seconds", a->seconds, "Time for all rows of a direction; five rounds at least (1; 0.1 on a card)")
      ->type_name("S")
      ->check(number(0, 3600, "1"));
  app.add_option("--rotate", a->rotate, "Take turns on tensors of so many MiB (twice the last cache, 64 to 256)")
      ->type_name("MIB")
      ->check(number(0, 65536, "64"));
  app.add_option("--seed", r.settings.seed, "Seed of the inputs (1)")->type_name("N")->check(whole(0, "1", 9e15));
  app.add_flag("--graphs", r.settings.graphs, "On a card each row once more, captured into a graph");
  if (r.layer.empty() || r.layer == "linear" || r.layer == "recurrent")
    app.add_flag("--peers", r.settings.peers,
                 "Time oneDNN's own linear layer and LSTM too, on a card cuBLASLt and each cuDNN algorithm, in the same process");
  app.add_option("--out", r.out, "Write a line of JSON for each row into this file")->type_name("FILE")->check(file_name());
  app.add_flag("--json", r.json, "Print lines of JSON in place of the table");
}

/// What is wrong with the value of an option, where that can be said without the problem.
std::string wrong_option(std::string_view option, const std::string& value) {
  if (value.empty() || value.find_first_of(" \t\n#=") != std::string::npos) return "expected one word";
  if (option != "dtype") return {};
  try {
    if (parse_dtype(value) <= DType::bf16) return {};
  } catch (const Error&) {  // said below, without the types that no layer computes in
  }
  return fmt::format("expected f32, f16 or bf16, got \"{}\"", value);
}

void add_layer(CLI::App& bench_app, const bench::Layer& layer, int& status) {
  const auto a = std::make_shared<BenchArguments>();
  a->request.layer = layer.name;
  const bool model = layer.name == "gnmt";
  CLI::App& app =
      *bench_app.add_subcommand(std::string(layer.name), model ? "Time a training step of the translation model"
                                                               : fmt::format("Time the rows of the {} layer", layer.name));
  std::string example = fmt::format("everglow bench {}", layer.name);
  for (const std::string_view size : layer.sizes) {
    app.add_option(flag_of(size), a->fields[std::string(size)], "Size of the problem, in place of the built-in cases")
        ->type_name("N")
        ->check(whole(0, "64", 1e12));
    example += fmt::format(" {} {}", flag_of(size), size == "layers" || size == "tensors" ? 2 : 64);
  }
  for (const std::string_view option : layer.options)
    app.add_option(flag_of(option), a->fields[std::string(option)], "Option of the problem, as in cases/*.cases")
        ->type_name("VALUE")
        ->check(CLI::Validator([option](std::string& value) { return wrong_option(option, value); }, ""));
  app.footer(example);
  add_common(app, a);
  if (layer.name == "attention") {
    app.add_flag("--story", a->story,
                 "Scores in memory, FlashAttention and FlashAttention-2 on a card, over lengths and head sizes, with ratios");
  }
  app.callback([a, &status] { status = run_bench(*a); });
}

void add_compare(CLI::App& bench_app, int& status) {
  struct Arguments {
    std::string before, after;
    double threshold = 10;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::App& app = *bench_app.add_subcommand("compare", "Compare two files that --out wrote; fails where one is slower");
  app.footer("everglow bench compare before.jsonl after.jsonl --threshold 5");
  app.add_option("before", a->before, "Records to compare with")->required();
  app.add_option("after", a->after, "Records that are compared")->required();
  app.add_option("--threshold", a->threshold, "Per cent by which a row may be slower (10)")
      ->type_name("P")
      ->check(number(0, 1000, "5"));
  app.callback([a, &status] { status = compare_records(a->before, a->after, a->threshold); });
}

void add_report(CLI::App& bench_app, int& status) {
  struct Arguments {
    std::vector<std::string> files;
    std::string html;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::App& app = *bench_app.add_subcommand("report", "Draw files that --out wrote as one page: bars beside peers, rooflines");
  app.footer("everglow bench report rows.jsonl --html rows.html");
  app.add_option("files", a->files, "Records to draw")->required();
  app.add_option("--html", a->html, "Write the page, which needs no other file, here")
      ->required()
      ->type_name("FILE")
      ->check(file_name());
  app.callback([a, &status] {
    write_report(a->files, a->html);
    status = 0;
  });
}

}  // namespace

void add_bench(CLI::App& tool, int& status) {
  CLI::App& app = *tool.add_subcommand("bench", "Time the kernels of a layer, or the translation model, in turn in one run");
  app.footer("everglow bench linear --batch 512 --inputs 1024 --outputs 4096");
  app.require_subcommand(1);
  for (const bench::Layer& layer : bench::benchmarked_layers()) add_layer(app, layer, status);
  const auto all = std::make_shared<BenchArguments>();
  CLI::App& every = *app.add_subcommand("all", "Time the built-in cases of all layers");
  every.footer("everglow bench all --out rows.jsonl");
  add_common(every, all);
  every.callback([all, &status] { status = run_bench(*all); });
  add_compare(app, status);
  add_report(app, status);
}

}  // namespace everglow::cli
