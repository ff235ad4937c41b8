// everglow bench: times every row of a layer, or the translation model, in turn within one run; compares two such runs.
#include "bench/measure.hpp"
#include "bench/record.hpp"
#include "cli/arguments.hpp"
#include "cli/bar.hpp"
#include "cli/bench_compare.hpp"
#include "cli/bench_report.hpp"
#include "cli/commands.hpp"
#include "cli/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace everglow::cli {
namespace {

constexpr double mebibyte = 1024 * 1024;
constexpr double reference_flops = 1e9;  // above it a run of the plain loops takes seconds

struct BenchArguments {
  std::string layer;                          // empty: all
  std::map<std::string, std::string> fields;  // of an explicit problem
  bench::Settings settings;
  bench::Timing timing;
  double rotate = 0;  // MiB
  std::string filter, tag = "bench", direction, out;
  bool list = false, json = false;
};

/// Twice the last cache, so that what one set left there is gone when its turn comes again; 64 ... 256 MiB.
double default_rotation() {
  const long cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp(2 * static_cast<double>(cache) / mebibyte, 64.0, 256.0);
}

[[noreturn]] void wrong(const std::string& what) { throw Error(ErrorCode::invalid_argument, "bench", what); }

std::string without_tags(const std::string& line) {
  const std::string text = line.substr(0, line.find('#'));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string flag_of(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// The problem that the flags describe: all sizes, in the order of the case lines.
cases::Case explicit_case(const BenchArguments& a, const bench::Layer& layer) {
  std::string line(layer.name), missing;
  const auto add = [&](std::string_view key) {
    const auto field = a.fields.find(std::string(key));
    if (field != a.fields.end() && !field->second.empty()) line += fmt::format(" {}={}", key, field->second);
    return field != a.fields.end() && !field->second.empty();
  };
  for (const std::string_view size : layer.sizes)
    if (!add(size)) missing += (missing.empty() ? "" : ", ") + flag_of(size);
  if (!missing.empty()) wrong(fmt::format("expected all sizes of the problem, {} too", missing));
  for (const std::string_view option : layer.options) add(option);
  return cases::parse(line);
}

std::vector<cases::Case> chosen_cases(const BenchArguments& a) {
  const bool given = std::any_of(a.fields.begin(), a.fields.end(), [](const auto& field) { return !field.second.empty(); });
  if (given)
    for (const bench::Layer& layer : bench::benchmarked_layers())
      if (layer.name == a.layer) return {explicit_case(a, layer)};
  std::vector<cases::Case> out = cases::timed(a.tag);
  std::erase_if(out, [&](const cases::Case& c) {
    return (!a.layer.empty() && c.layer != a.layer) || c.line.find(a.filter) == std::string::npos;
  });
  if (out.empty())
    wrong(fmt::format("no case{} with the tag \"{}\" holds \"{}\"; --list shows them, --tag and --filter choose",
                      a.layer.empty() ? "" : " of " + a.layer, a.tag, a.filter));
  return out;
}

/// Rows that the user asked for; of the others the reference is left out where it would take minutes.
void choose_rows(const BenchArguments& a, const cases::Case& c, bench::Problem& problem) {
  const double flops = problem.directions.front().flops;
  if (a.settings.rows.empty() && flops > reference_flops)
    std::erase_if(problem.rows, [](const bench::Row& row) { return bench::is_reference(row.kernel); });
  if (problem.rows.empty()) wrong(fmt::format("--kernel: none of them accepts \"{}\"", without_tags(c.line)));
}

std::vector<std::size_t> chosen_directions(const BenchArguments& a, const cases::Case& c, const bench::Problem& problem) {
  std::vector<std::size_t> out;
  std::string names;
  for (std::size_t i = 0; i < problem.directions.size(); ++i) {
    const std::string& name = problem.directions[i].name;
    names += (names.empty() ? "" : ", ") + name;
    if (a.direction.empty() || a.direction == name) out.push_back(i);
  }
  if (out.empty()) wrong(fmt::format("--direction: \"{}\" has {}, got \"{}\"", without_tags(c.line), names, a.direction));
  return out;
}

std::vector<bench::Record> records(const BenchArguments& a, const cases::Case& c, const bench::Problem& problem,
                                   std::size_t direction) {
  const bench::Direction& d = problem.directions[direction];
  std::vector<bench::Record> out;
  std::string ref_name;
  double ref_us = 0;
  const bench::Roof roof = bench::roof_of(parse_dtype(problem.dtype), a.settings);
  const std::vector<bench::Samples> samples = bench::measure(problem, direction, a.timing);
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const bench::Samples& s = samples[row];
    const bench::Expected& expected = problem.rows[row].expected[direction];
    bench::Record r{.op = c.layer, .line = without_tags(c.line), .direction = d.name, .kernel = s.kernel, .dtype = problem.dtype};
    r.device = bench::processor(), r.isa = a.settings.cpu.isa, r.threads = a.settings.threads;
    r.warmup = s.warmup, r.samples_us = s.us, r.flops = d.flops, r.bytes = d.bytes;
    r.steps = d.steps, r.tokens = d.tokens, r.pairs = d.pairs;
    r.chosen = problem.rows[row].chosen;
    r.floor_us = expected.floor_us, r.predicted_us = expected.predicted_us;
    r.peak_gflops = roof.peak_gflops, r.bandwidth_gbs = roof.bandwidth_gbs, r.figures = roof.figures;
    r.median_us = bench::quantile(s.us, 0.5), r.p10 = bench::quantile(s.us, 0.1), r.p90 = bench::quantile(s.us, 0.9);
    // A peer says more than the reference does.
    if (s.kernel == "peer.onednn" || (bench::is_reference(s.kernel) && ref_name.empty())) ref_name = s.kernel, ref_us = r.median_us;
    out.push_back(std::move(r));
  }
  for (bench::Record& r : out) r.ref_name = ref_name, r.ref_us = ref_us;
  return out;
}

/// Where the records go.
class Output {
 public:
  explicit Output(const BenchArguments& a) : a_(a) {
    if (a.out.empty()) return;
    file_.open(a.out);
    if (!file_) throw Error(ErrorCode::io, "bench", fmt::format("--out: cannot write \"{}\"", a.out));
  }
  void begin(const cases::Case& c) {
    if (!a_.json) fmt::print("\n{}\n", without_tags(c.line));
    headed_ = false;
  }
  void add(const std::vector<bench::Record>& records) {
    if (!a_.json && !headed_) fmt::print("{}", bench::table_head(records.front()));
    headed_ = true;
    for (const bench::Record& record : records) {
      fmt::print("{}", a_.json ? bench::json_line(record) : bench::table_line(record));
      if (file_.is_open()) file_ << bench::json_line(record) << std::flush;
    }
    std::fflush(stdout);
    if (file_.is_open() && !file_) throw Error(ErrorCode::io, "bench", fmt::format("--out: writing \"{}\" failed", a_.out));
  }

 private:
  const BenchArguments& a_;
  std::ofstream file_;
  bool headed_ = false;
};

void time_cases(const BenchArguments& a, const std::vector<cases::Case>& all) {
  Output output(a);
  if (!a.json)
    fmt::print("{}, {}, {} thread{}, seed {}\n", bench::processor(), a.settings.cpu.isa, a.settings.threads,
               a.settings.threads == 1 ? "" : "s", a.settings.seed);
  CountBar bar(stderr, "case", std::ssize(all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const cases::Case& c = all[i];
    bar.show(static_cast<std::int64_t>(i), without_tags(c.line));
    bench::Problem problem = bench::make_problem(c, a.settings);
    choose_rows(a, c, problem);
    const std::vector<std::size_t> directions = chosen_directions(a, c, problem);
    bar.erase();
    output.begin(c);
    for (const std::size_t direction : directions) {
      bar.show(static_cast<std::int64_t>(i), fmt::format("{} {}", without_tags(c.line), problem.directions[direction].name));
      const std::vector<bench::Record> found = records(a, c, problem, direction);
      bar.erase();
      output.add(found);
    }
  }
}

int run_bench(BenchArguments a) {
  a.settings.cpu = described_cpu();
  if (a.settings.threads == 0) a.settings.threads = default_threads();
  a.settings.rotate_bytes = static_cast<std::int64_t>(a.rotate * mebibyte);
  try {
    const std::vector<cases::Case> all = chosen_cases(a);
    if (a.list)
      for (const cases::Case& c : all) fmt::print("{}\n", without_tags(c.line));
    else
      time_cases(a, all);
  } catch (const std::invalid_argument& error) {
    wrong(error.what());  // a case line that cannot be timed
  }
  return 0;
}

std::string known_kernel(const std::string& layer, const std::string& kernel) {
  std::vector<std::string> known;
  for (const bench::Layer& of : bench::benchmarked_layers())
    if (of.name != "gnmt" && (layer.empty() || of.name == layer))
      for (const std::string& name : kernels(of.name, DeviceKind::cpu)) known.push_back(name);
  if (std::find(known.begin(), known.end(), kernel) != known.end()) return {};
  return fmt::format("expected one of {}, got \"{}\"; for example {}", fmt::join(known, ", "), kernel, known.front());
}

void add_common(CLI::App& app, const std::shared_ptr<BenchArguments>& a) {
  if (a->layer != "gnmt")
    app.add_option("--kernel", a->settings.rows,
                   "Only this row; may be given again. Without it: all that accept, and the reference")
        ->type_name("NAME")
        ->check(CLI::Validator([layer = a->layer](std::string& name) { return known_kernel(layer, name); }, ""));
  app.add_option("--direction", a->direction, "Only forward, backward, forward_backward, run, step, train or evaluate")
      ->type_name("NAME");
  app.add_option("--tag", a->tag,
                 "Built-in cases with this tag: bench, headline (what docs/bench.md compares), users (their shapes)")
      ->type_name("TAG")
      ->check(one_of({"bench", "headline", "users"}));
  app.add_option("--filter", a->filter, "Only built-in cases whose line holds the text")->type_name("TEXT");
  app.add_flag("--list", a->list, "Show the cases and stop");
  app.add_option("--threads", a->settings.threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  app.add_option("--seconds", a->timing.seconds, "Time for all rows of a direction; five rounds at least (1)")
      ->type_name("S")
      ->check(number(0, 3600, "1"));
  app.add_option("--rotate", a->rotate, "Take turns on tensors of so many MiB (twice the last cache, 64 to 256)")
      ->type_name("MIB")
      ->check(number(0, 65536, "64"));
  app.add_option("--seed", a->settings.seed, "Seed of the inputs (1)")->type_name("N")->check(whole(0, "1", 9e15));
  if (a->layer.empty() || a->layer == "linear" || a->layer == "recurrent")
    app.add_flag("--peers", a->settings.peers, "Time oneDNN's own linear layer and LSTM too, in the same process");
  app.add_option("--out", a->out, "Write a line of JSON for each row into this file")->type_name("FILE");
  app.add_flag("--json", a->json, "Print lines of JSON in place of the table");
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
  a->layer = layer.name;
  a->rotate = default_rotation();
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
  app.add_option("--html", a->html, "Write the page, which needs no other file, here")->required()->type_name("FILE");
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
  all->rotate = default_rotation();
  CLI::App& every = *app.add_subcommand("all", "Time the built-in cases of all layers");
  every.footer("everglow bench all --out rows.jsonl");
  add_common(every, all);
  every.callback([all, &status] { status = run_bench(*all); });
  add_compare(app, status);
  add_report(app, status);
}

}  // namespace everglow::cli
