// everglow check: every row of this machine's CPU beside the reference on the built-in cases, on every instruction set it has.
#include "cases/proof/proof.hpp"
#include "cli/arguments.hpp"
#include "cli/bar.hpp"
#include "cli/commands.hpp"
#include "cli/layers.hpp"
#include "cli/support.hpp"
#include "cli/tally.hpp"

#include <everglow/plan.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace everglow::cli {
namespace {

struct CheckArguments {
  std::string layer, row;
  int threads = 0;
  bool json = false, support = false;
};

/// From the lowest to the one that the library chose, which EVERGLOW_ISA lowers.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> out;
  const std::string highest = DeviceDescription(Device::cpu()).isa;
  for (const char* isa : {"portable", "avx2", "avx512", "avx512_bf16"}) {
    out.emplace_back(isa);
    if (highest == isa) break;
  }
  return out;
}

/// Rows of this project are built for several instruction sets; the reference and the libraries are what they are.
bool has_instruction_sets(std::string_view row) { return row.starts_with("cpu."); }
/// The reference has one way of computing, so that running it twice shows nothing, and it takes most of the time.
bool is_reference(std::string_view row) { return row.starts_with("reference."); }

class Check {
 public:
  explicit Check(const CheckArguments& arguments) : arguments_(arguments), isas_(instruction_sets()) {
    for (const char* layer : layers) {
      if (!arguments.layer.empty() && arguments.layer != layer) continue;
      for (const std::string& row : kernels(layer, DeviceKind::cpu)) {
        if (!arguments.row.empty() && arguments.row != row) continue;
        if (!has_instruction_sets(row)) tallies_.push_back({.layer = layer, .row = row, .isa = ""});
        for (const std::string& isa : isas_)
          if (has_instruction_sets(row)) tallies_.push_back({.layer = layer, .row = row, .isa = isa});
      }
    }
  }

  void run(const cases::Case& c) {
    const std::unique_ptr<proof::Proof> proof = proof::make_proof(c);
    for (const std::string& isa : isas_) {
      proof->device.isa = isa;
      const bool highest = isa == isas_.back();
      // With `deterministic` all arithmetic of a row of ours is that of the instruction set; without, oneDNN may serve products,
      // which it does on the highest set alone.
      for (const bool deterministic : {true, false})
        if (deterministic || highest) run(*proof, c, isa, {.threads = arguments_.threads, .deterministic = deterministic});
    }
    for (Tally& tally : tallies_) {
      const auto answer = answers_.find(&tally);
      if (answer != answers_.end()) tally.dtypes.insert(c.text("dtype", "f32")), ++tally.cases;
      if (tally.layer == c.layer && (tally.isa.empty() || tally.isa == isas_.back()))
        support_.note(c, c.text("dtype", "f32"), tally.row, answer == answers_.end() ? Answer::declined : answer->second);
    }
    answers_.clear();
  }

  /// The cases of the layers whose rows were chosen.
  std::vector<cases::Case> cases() const {
    std::vector<cases::Case> out;
    for (const char* layer : layers)
      if (std::any_of(tallies_.begin(), tallies_.end(), [&](const Tally& t) { return t.layer == layer; }))
        for (cases::Case& c : cases::tested(layer)) out.push_back(std::move(c));
    return out;
  }

  const std::vector<Tally>& tallies() const { return tallies_; }
  const Support& support() const { return support_; }
  const std::vector<std::string>& isas() const { return isas_; }

 private:
  /// All rows of one instruction set that accept the case; those that have none of their own run with the highest.
  void run(const proof::Proof& proof, const cases::Case& c, const std::string& isa, const PlanOptions& options) {
    const std::vector<std::string> rows = proof::accepting_rows(proof, options);
    for (Tally& tally : tallies_) {
      if (tally.layer != c.layer || tally.isa != (has_instruction_sets(tally.row) ? isa : "")) continue;
      if (tally.isa.empty() && isa != isas_.back()) continue;
      if (is_reference(tally.row) && !options.deterministic) continue;
      if (std::find(rows.begin(), rows.end(), tally.row) == rows.end()) continue;
      const Answer answer = prove(proof, c, options, tally);
      if (answers_.emplace(&tally, answer).first->second != Answer::failed) answers_[&tally] = answer;
    }
  }

  static Answer prove(const proof::Proof& proof, const cases::Case& c, PlanOptions options, Tally& tally) {
    const std::size_t before = tally.faults.size();
    options.force = tally.row;
    const std::string way = options.deterministic ? " deterministic" : "";
    try {
      for (const proof::Finding& finding : proof.run(options)) {
        tally.share = std::max(tally.share, finding.share);
        if (!finding.fault.empty())
          tally.faults.push_back({c.line, fmt::format("{} {}{}", finding.direction, finding.tensor, way), finding.fault});
      }
    } catch (const std::exception& error) {
      tally.faults.push_back({c.line, "run" + way, error.what()});
    }
    return tally.faults.size() == before ? Answer::proved : Answer::failed;
  }

  CheckArguments arguments_;
  std::vector<std::string> isas_;
  std::vector<Tally> tallies_;
  std::map<const Tally*, Answer> answers_;  // to the case at hand, of the rows that accepted it
  Support support_;
};

nlohmann::json as_json(const Check& check, double seconds) {
  return {{"schema_version", 1},
          {"version", version()},
          {"instruction_sets", check.isas()},
          {"seed", proof::seed()},
          {"passed", passed(check.tallies())},
          {"seconds", seconds},
          {"rows", rows_json(check.tallies())},
          {"support", check.support().json()}};
}

int run_check(const CheckArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  Check check(arguments);
  const std::vector<cases::Case> all = check.cases();
  if (check.tallies().empty())
    throw Error(ErrorCode::invalid_argument, "check",
                fmt::format("--row: expected one of {}, got \"{}\"", fmt::join(kernels(arguments.layer, DeviceKind::cpu), ", "),
                            arguments.row));
  {
    CountBar bar(stderr, "case", std::ssize(all));
    for (std::size_t i = 0; i < all.size(); ++i) {
      bar.show(static_cast<std::int64_t>(i), all[i].line);
      check.run(all[i]);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    fmt::print("{}\n", as_json(check, seconds).dump(2));
    return passed(check.tallies()) ? 0 : 1;
  }
  fmt::print("{} cases beside the reference in f64, seed {}; a share of 1 is the derived bound\n\n{}", all.size(), proof::seed(),
             tally_table(check.tallies()));
  fmt::print("{}", fault_list(check.tallies()));
  fmt::print("\nproved support by option of the case lines; * with some other options only\n{}", check.support().text());
  fmt::print("\n{} in {:.0f} s\n",
             passed(check.tallies()) ? "all rows agree with the reference" : "NOT all rows agree with the reference", seconds);
  return passed(check.tallies()) ? 0 : 1;
}

/// The rows that accept a case in another dtype; nothing where the case cannot be made in it.
std::vector<std::string> accepting_rows(cases::Case c, const char* dtype) {
  c.fields["dtype"] = dtype;
  try {
    const std::unique_ptr<proof::Proof> proof = proof::make_proof(c);
    return proof->explain({}).dtype == dtype ? proof::accepting_rows(*proof) : std::vector<std::string>();
  } catch (const Error&) {
    return {};
  }
}

/// What rows answer, without a run: each case in its own dtype, and made small in all the others.
Support asked_support() {
  constexpr std::int64_t most = 12;  // a proof computes the results of the reference before it can be asked
  Support support;
  for (const char* layer : layers)
    for (const cases::Case& c : cases::tested(layer))
      for (const char* dtype : dtype_names) {
        const bool own = c.text("dtype", "f32") == dtype;
        const std::vector<std::string> rows = accepting_rows(own ? c : at_most(c, most), dtype);
        for (const std::string& row : kernels(layer, DeviceKind::cpu)) {
          // In other dtypes oneDNN serves what its version has for the CPU at hand; the table is the same everywhere.
          if (row.starts_with("onednn.") && dtype != std::string_view("f32")) continue;
          const bool accepted = std::find(rows.begin(), rows.end(), row) != rows.end();
          support.note(c, dtype, row, accepted ? (own ? Answer::proved : Answer::accepted) : Answer::declined);
        }
      }
  return support;
}

void print_support() {
  fmt::print("{}{}", R"(# What each CPU row supports

Written by `everglow check --support` from the kernel tables and the case lists (`cases/*.cases`); a test keeps it current.

- An option is a key of the case lines that is no size. "plain" is a layer without options, "size 0" one with an empty dimension.
- A dtype is listed where the row takes it with the option, and `everglow check` proves it. A star: beside some other options only.
  Parentheses: the row takes it, but no case of the list has both.
- What no other row takes, the reference does, and `explain()` says so. f64 is for the reference alone. `onednn.linear` takes f16 and
  bf16 where its version has products of them for the CPU at hand, which this table leaves out.
- In 16 bits the rows `cpu.*` add up in f32, as gates, probabilities and cell states are f32, and round a result once. f16 is converted to
  f32 where it is read, by the CPU's own instructions where it has F16C: f16 arithmetic of AVX-512 would add up in f16. bf16 is
  widened to f32 there, or, with the instruction set `avx512_bf16`, two operands of bf16 are multiplied as they are, in pairs: the
  three products of linear layers, x and h of recurrent layers with the weights, and q k and do v of attention where the head
  dimension is even and queries are not few. Subnormal numbers then count as zero in these products. What the definition keeps in f32
  stays so: gradients inside a recurrent layer, what a projection reads, probabilities and their gradients. `explain()` says how a
  row multiplies.
)",
             asked_support().markdown());
}

std::string known_row(const std::string& row) {
  std::string known;
  for (const char* layer : layers)
    for (const std::string& name : kernels(layer, DeviceKind::cpu)) {
      if (name == row) return {};
      known += (known.empty() ? "" : ", ") + name;
    }
  return fmt::format("expected one of {}, got \"{}\"; for example cpu.linear", known, row);
}

}  // namespace

void add_check(CLI::App& tool, int& status) {
  const auto arguments = std::make_shared<CheckArguments>();
  CLI::App& app = *tool.add_subcommand("check", "Run every kernel of this CPU beside the reference on the built-in cases");
  app.footer("everglow check --layer softmax");
  app.add_option("--layer", arguments->layer, "Only this layer")->type_name("NAME")->check(one_of({layers.begin(), layers.end()}));
  app.add_option("--row", arguments->row, "Only this row, as everglow info lists them")
      ->type_name("NAME")
      ->check(CLI::Validator([](std::string& row) { return known_row(row); }, ""));
  app.add_option("--threads", arguments->threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  app.add_flag("--json", arguments->json, "One JSON object in place of the tables");
  app.add_flag("--support", arguments->support, "Run nothing; write docs/support.md: what rows accept");
  app.callback([arguments, &status] {
    if (arguments->support) {
      print_support();
      status = 0;
    } else {
      status = run_check(*arguments);
    }
  });
}

}  // namespace everglow::cli
