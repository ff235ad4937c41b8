// everglow_bench: times every CPU row of the layers, forward and backward, beside the reference row and in turn with it.
#include "bench/arguments.hpp"
#include "bench/record.hpp"

#include <fstream>
#include <iostream>

namespace everglow::bench {
namespace {

std::vector<cases::Case> chosen_cases(const Arguments& a) {
  std::vector<cases::Case> out;
  for (const std::string& line : a.cases) out.push_back(cases::parse(line));
  if (a.cases.empty()) out = cases::tagged("bench");
  std::erase_if(out, [&](const cases::Case& c) { return c.line.find(a.filter) == std::string::npos; });
  if (out.empty()) throw std::invalid_argument("--filter: no case holds \"" + a.filter + "\"; --list shows them");
  return out;
}

std::string without_tags(const std::string& line) {
  const std::string text = line.substr(0, line.find('#'));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::vector<Record> records(const cases::Case& c, const Problem& problem, std::size_t direction, const Arguments& a) {
  const std::vector<Samples> samples = measure(problem, direction, a.timing);
  const Direction& d = problem.directions[direction];
  std::vector<Record> out;
  std::string ref_name;
  double ref_us = 0;
  for (const Samples& s : samples) {
    Record r{.op = c.layer, .line = without_tags(c.line), .direction = d.name, .kernel = s.kernel, .dtype = problem.dtype};
    r.device = processor(), r.isa = DeviceDescription(Device::cpu()).isa, r.threads = a.settings.threads;
    r.warmup = s.warmup, r.samples_us = s.us, r.flops = d.flops, r.bytes = d.bytes;
    r.median_us = quantile(s.us, 0.5), r.p10_us = quantile(s.us, 0.1), r.p90_us = quantile(s.us, 0.9);
    if (is_reference(s.kernel)) ref_name = s.kernel, ref_us = r.median_us;
    out.push_back(std::move(r));
  }
  for (Record& r : out) r.ref_name = ref_name, r.ref_us = ref_us;
  return out;
}

void check_wishes(const Arguments& a, const cases::Case& c, const Problem& problem) {
  if (problem.rows.empty()) throw std::invalid_argument("--rows: none of them accepts \"" + c.line + "\"");
  std::string names;
  for (const Direction& d : problem.directions) {
    if (a.direction.empty() || d.name == a.direction) return;
    names += (names.empty() ? "" : ", ") + d.name;
  }
  throw std::invalid_argument("--direction: \"" + c.line + "\" has " + names + ", got \"" + a.direction + "\"");
}

void check_rows(const Arguments& a) {
  std::vector<std::string> known;
  for (const char* layer : {"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"})
    for (const std::string& name : kernels(layer, DeviceKind::cpu)) known.push_back(name);
  for (const std::string& row : a.settings.rows)
    if (std::find(known.begin(), known.end(), row) == known.end())
      throw std::invalid_argument("--rows: there is no CPU row \"" + row + "\"; for example --rows cpu.linear,reference.linear");
}

int run(const Arguments& a) {
  check_rows(a);
  const std::vector<cases::Case> all = chosen_cases(a);
  if (a.list) {
    for (const cases::Case& c : all) std::cout << without_tags(c.line) << '\n';
    return 0;
  }
  std::ofstream out;
  if (!a.out.empty()) {
    out.open(a.out);
    if (!out) throw std::invalid_argument("--out: cannot write \"" + a.out + "\"");
  }
  std::cout << processor() << ", " << DeviceDescription(Device::cpu()).isa << ", " << a.settings.threads << " threads, seed "
            << a.settings.seed << '\n';
  for (const cases::Case& c : all) {
    const Problem problem = make_problem(c, a.settings);
    check_wishes(a, c, problem);
    std::cout << '\n' << without_tags(c.line) << '\n' << table_head();
    for (std::size_t direction = 0; direction < problem.directions.size(); ++direction) {
      if (!a.direction.empty() && problem.directions[direction].name != a.direction) continue;
      for (const Record& record : records(c, problem, direction, a)) {
        std::cout << table_line(record) << std::flush;
        if (out.is_open()) out << json_line(record) << std::flush;
      }
    }
  }
  if (out.is_open() && !out) throw std::runtime_error("--out: writing \"" + a.out + "\" failed");
  return 0;
}

}  // namespace
}  // namespace everglow::bench

int main(int count, char** words) {
  try {
    const auto arguments = everglow::bench::parse_arguments({words + 1, words + count});
    if (arguments.help) {
      std::cout << everglow::bench::usage();
      return 0;
    }
    return everglow::bench::run(arguments);
  } catch (const std::exception& error) {
    std::cerr << "everglow_bench: " << error.what() << '\n';
    return 2;
  }
}
