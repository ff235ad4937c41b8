// The benchmarks of `everglow bench` on a card, for machines that have none of the libraries that the tool needs.
#include "bench/cuda/models.hpp"
#include "bench/story.hpp"

#include <charconv>
#include <iostream>
#include <stdexcept>

namespace everglow::bench {
namespace {

constexpr const char* usage =
    "usage: everglow_cuda_bench OUT.jsonl [LAYER|all|story|gnmt [WORDS]] [OPTION]...\n"
    "Times the rows of a layer on a card and adds a line of JSON for each to the file; - writes none.\n"
    "  WORDS              only cases whose line holds them\n"
    "  --tag TAG          built-in cases with this tag: card (the default), headline, users, bench\n"
    "  --case LINE        this problem in place of the built-in ones\n"
    "  --kernel NAME      only this row; may be given again\n"
    "  --direction NAME   only forward, backward, activation_gradient, weight_gradient, ...\n"
    "  --peers            cuBLASLt and cuDNN too, in the same process\n"
    "  --graphs           each row once more, captured into a graph, so that the host's calls do not count\n"
    "  --dtype TYPE       of the story: f16 (the default) or bf16\n"
    "  --device cuda:N    the card (cuda:0)\n"
    "  --seconds S        for all rows of a direction; five rounds at least (0.1)\n"
    "  --json             lines of JSON in place of tables\n"
    "  --list             show the cases and stop\n"
    "example: everglow_cuda_bench rows.jsonl recurrent cell=lstm --peers\n";

struct Arguments {
  Request request{};
  std::string dtype = "f16";
  Device device = Device::cuda(0);
  bool story = false, models = false, list = false, help = false;
};

double seconds_of(const std::string& text) {
  double value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || !(value >= 0) || value > 3600)
    wrong("--seconds: expected a number from 0 to 3600, got \"" + text + "\"");
  return value;
}

void take_option(Arguments& a, const std::string& option, const std::string& value) {
  if (option == "--tag")
    a.request.tag = value;
  else if (option == "--case")
    a.request.explicit_line = value;
  else if (option == "--kernel")
    a.request.settings.rows.push_back(value);
  else if (option == "--direction")
    a.request.direction = value;
  else if (option == "--dtype")
    a.dtype = value;
  else if (option == "--device")
    a.device = parse_device(value);
  else if (option == "--seconds")
    a.request.timing.seconds = seconds_of(value);
  else
    wrong("unknown option \"" + option + "\"; --help lists them");
}

void take_words(Arguments& a, const std::vector<std::string>& words) {
  if (words.empty()) wrong("expected the file for the records, or -; --help says more");
  if (words.size() > 3)
    wrong("expected a file, a layer and words of a case, got \"" + words[3] + "\" too; quote words with spaces");
  if (words[0] != "-") a.request.out = words[0];
  if (words.size() > 2) a.request.filter = words[2];
  if (words.size() < 2 || words[1] == "all") return;
  a.story = words[1] == "story";
  a.models = words[1] == "gnmt";
  if (a.story || a.models) return;
  a.request.layer = words[1];
  std::string known;
  for (const Layer& layer : benchmarked_layers()) {
    if (layer.name == words[1]) return;
    known += std::string(layer.name) + ", ";
  }
  wrong("expected one of " + known + "all, story, got \"" + words[1] + "\"");
}

Arguments read(int argc, char** argv) {
  Arguments out;
  out.request.append = true, out.request.timing.seconds = 0.1;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h")
      out.help = true;
    else if (word == "--peers")
      out.request.settings.peers = true;
    else if (word == "--graphs")
      out.request.settings.graphs = true;
    else if (word == "--json")
      out.request.json = true;
    else if (word == "--list")
      out.list = true;
    else if (!word.starts_with("--"))
      words.push_back(word);
    else if (i + 1 == argc)
      wrong(word + ": expected a value");
    else
      take_option(out, word, argv[++i]);
  }
  if (out.help) return out;
  take_words(out, words);
  if (out.dtype != "f16" && out.dtype != "bf16") wrong("--dtype: expected f16 or bf16, got \"" + out.dtype + "\"");
  if (out.device.kind != DeviceKind::cuda) wrong("--device: expected cuda:N, got \"" + to_string(out.device) + "\"");
  return out;
}

void list(const Arguments& a) {
  Request request = a.request;
  request.settings.device.device = a.device;
  const std::vector<cases::Case> all = a.story ? story_lines(request.filter, a.dtype) : chosen_cases(request);
  for (const cases::Case& c : all) std::cout << without_tags(c.line) << '\n';
}

void run(Arguments a) {
  if (a.help) {
    std::cout << usage;
    return;
  }
  if (a.list) return list(a);
  open_device(a.request.settings, a.device);
  a.request.settings.rotate_bytes = rotation_of(a.request.settings.device);
  if (a.models) {
    Output output(a.request);
    return train_models(a.request.filter, a.device, [&](const Record& record) { output.add({record}); });
  }
  if (a.story)
    tell_story(a.request, a.dtype, {});
  else
    time_cases(a.request, chosen_cases(a.request), {});
}

}  // namespace
}  // namespace everglow::bench

int main(int argc, char** argv) {
  try {
    everglow::bench::run(everglow::bench::read(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  } catch (const everglow::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return error.code() == everglow::ErrorCode::invalid_argument ? 2 : 1;
  }
  return 0;
}
