// Times and prints the story of attention.
#include "bench/story.hpp"

#include <algorithm>
#include <cstdio>

namespace everglow::bench {
namespace {

constexpr std::int64_t tokens = 16384, columns = 2048;

/// "flash2" of "sm80.attention_flash2".
std::string short_name(const std::string& kernel) {
  const std::size_t at = kernel.find("attention_");
  return at == std::string::npos ? kernel : kernel.substr(at + std::string("attention_").size());
}

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string rate(double flops, double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", flops / us / 1e6);
  return text;
}

const StoryCell* find(const StoryLine& line, const std::string& name) {
  for (const StoryCell& cell : line.cells)
    if (short_name(cell.kernel) == name) return &cell;
  return nullptr;
}

std::string times_faster(const StoryLine& line, const std::string& than) {
  const StoryCell *ours = find(line, "flash2"), *theirs = find(line, than);
  if (ours == nullptr || theirs == nullptr) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", (theirs->forward_us + theirs->backward_us) / (ours->forward_us + ours->backward_us));
  return text;
}

StoryLine told(const Request& request, const cases::Case& c, Output& output) {
  const Chosen chosen = chosen_problem(request, c);
  StoryLine line{.length = c.integer("queries", 0),
                 .forward_flops = chosen.problem.directions[0].flops,
                 .backward_flops = chosen.problem.directions[1].flops};
  for (const Row& row : chosen.problem.rows) line.cells.push_back({.kernel = row.kernel});
  for (const std::size_t direction : {0, 1}) {
    const std::vector<Record> found = records(request, c, chosen.problem, direction);
    for (std::size_t i = 0; i < found.size(); ++i)
      (direction == 0 ? line.cells[i].forward_us : line.cells[i].backward_us) = found[i].median_us;
    if (request.json)
      output.add(found);
    else
      output.keep(found);
  }
  return line;
}

}  // namespace

std::string story_table(const std::vector<StoryLine>& lines) {
  std::vector<std::string> names;
  for (const StoryLine& line : lines)
    for (const StoryCell& cell : line.cells)
      if (std::find(names.begin(), names.end(), short_name(cell.kernel)) == names.end()) names.push_back(short_name(cell.kernel));
  constexpr std::size_t cell_width = 18;
  std::string out = right("length", 8);
  for (const std::string& name : names) out += right(name, cell_width);
  out += right("flash2 : flash1", cell_width) + right("flash2 : standard", cell_width + 2) + '\n';
  for (const StoryLine& line : lines) {
    out += right(std::to_string(line.length), 8);
    for (const std::string& name : names) {
      const StoryCell* cell = find(line, name);
      out += right(cell == nullptr
                       ? ""
                       : rate(line.forward_flops, cell->forward_us) + " / " + rate(line.backward_flops, cell->backward_us) + " / " +
                             rate(line.forward_flops + line.backward_flops, cell->forward_us + cell->backward_us),
                   cell_width);
    }
    out += right(times_faster(line, "flash1"), cell_width) + right(times_faster(line, "standard"), cell_width + 2) + '\n';
  }
  return out;
}

std::vector<std::vector<cases::Case>> story_cases(const std::string& dtype) {
  std::vector<std::vector<cases::Case>> out;
  for (const std::int64_t width : {64, 128, 256})
    for (const bool causal : {false, true}) {
      std::vector<cases::Case>& table = out.emplace_back();
      for (std::int64_t length = 512; length <= tokens; length *= 2)
        table.push_back(cases::parse("attention batch=" + std::to_string(tokens / length) + " queries=" + std::to_string(length) +
                                     " keys=" + std::to_string(length) + " heads=" + std::to_string(columns / width) +
                                     " head_dim=" + std::to_string(width) + (causal ? " causal=1" : "") + " dtype=" + dtype));
    }
  return out;
}

std::vector<cases::Case> story_lines(const std::string& filter, const std::string& dtype) {
  std::vector<cases::Case> out;
  for (const std::vector<cases::Case>& table : story_cases(dtype))
    for (const cases::Case& c : table)
      if (c.line.find(filter) != std::string::npos) out.push_back(c);
  if (out.empty()) wrong("--filter: no case of the story holds \"" + filter + "\"");
  return out;
}

void tell_story(const Request& request, const std::string& dtype, const Progress& progress) {
  std::int64_t done = 0;
  Output output(request);
  if (!request.json) std::printf("%s\n", session_head(request.settings).c_str());
  for (const std::vector<cases::Case>& table : story_cases(dtype)) {
    std::vector<StoryLine> lines;
    for (const cases::Case& c : table) {
      if (c.line.find(request.filter) == std::string::npos) continue;
      progress.show(done++, c.line);
      lines.push_back(told(request, c, output));
      progress.erase();
    }
    if (lines.empty() || request.json) continue;
    const cases::Case& c = table.front();
    std::printf("\nhead_dim %s, %s, %s, %lld tokens: TFLOP/s forward / backward / both\n%s", c.text("head_dim", "").c_str(),
                c.flag("causal") ? "causal" : "full", dtype.c_str(), static_cast<long long>(tokens), story_table(lines).c_str());
    std::fflush(stdout);
  }
}

}  // namespace everglow::bench
