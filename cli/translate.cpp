// everglow translate: standard input to standard output, one line out for each line in. Lines are decoded in chunks, since
// sentences of like length go well together; a chunk ends early where no more input comes, so that a person at a terminal is
// answered at once.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"

#include <everglow/gnmt/trainer.hpp>
#include <everglow/gnmt/translate.hpp>

#include <fmt/format.h>

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace everglow::cli {
namespace {

struct TranslateArguments {
  std::string model, device = "cpu";
  gnmt::SearchOptions search;
  PlanOptions plan;
};

/// Lines of standard input, with or without a line feed at the last one.
class LineReader {
 public:
  /// The next line without its line end; none at the end of the input.
  std::optional<std::string> next();
  /// True where the next line is there or comes within the time that a pipe's other end may need.
  bool ready();

 private:
  void read_more();

  std::string text_;
  std::size_t begin_ = 0;
  bool ended_ = false;
};

void LineReader::read_more() {
  text_.erase(0, begin_);
  begin_ = 0;
  constexpr std::size_t block = 1 << 16;
  const std::size_t held = text_.size();
  text_.resize(held + block);
  ssize_t got = 0;
  do got = ::read(STDIN_FILENO, text_.data() + held, block);
  while (got < 0 && errno == EINTR);
  text_.resize(held + static_cast<std::size_t>(got > 0 ? got : 0));
  if (got < 0) throw std::system_error(errno, std::generic_category(), "standard input");
  ended_ = got == 0;
}

std::optional<std::string> LineReader::next() {
  std::size_t end = text_.find('\n', begin_);
  while (end == std::string::npos && !ended_) {
    const std::size_t seen = text_.size() - begin_;
    read_more();
    end = text_.find('\n', seen);
  }
  if (end == std::string::npos && begin_ == text_.size()) return {};
  std::string line = text_.substr(begin_, end == std::string::npos ? end : end - begin_);
  begin_ = end == std::string::npos ? text_.size() : end + 1;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

bool LineReader::ready() {
  if (ended_ || text_.find('\n', begin_) != std::string::npos) return true;
  constexpr int wait_ms = 20;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, wait_ms) > 0;
}

void check_utf8(const std::string& line, std::int64_t number) {
  const std::size_t bad = gnmt::find_invalid_utf8(line);
  if (bad == std::string::npos) return;
  throw Error(ErrorCode::io, "translate",
              fmt::format("standard input:{}: expected UTF-8, got byte 0x{:02X} at byte {} of the line", number,
                          static_cast<unsigned char>(line[bad]), bad + 1));
}

void write_translations(gnmt::LoadedModel& loaded, std::vector<std::string>& lines, const gnmt::SearchOptions& search) {
  std::string text;
  for (const std::string& line : gnmt::translate(loaded.model, loaded.tokenizer, lines, search)) (text += line) += '\n';
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "standard output");
  lines.clear();
}

void translate(const TranslateArguments& a) {
  if (std::error_code failed; !std::filesystem::exists(a.model, failed))
    throw Error(ErrorCode::io, "translate",
                fmt::format("--model: expected the --out of everglow train, or a checkpoint in it, got \"{}\": {}", a.model,
                            failed ? failed.message() : "no such file or folder"));
  gnmt::LoadedModel loaded = gnmt::load_model(a.model, parse_device(a.device), a.plan);
  constexpr std::size_t chunk = 2000;  // lines
  LineReader reader;
  std::vector<std::string> lines;
  std::int64_t number = 0;
  while (std::optional<std::string> line = reader.next()) {
    try {
      check_utf8(*line, ++number);
    } catch (const Error&) {
      write_translations(loaded, lines, a.search);  // what came before the fault is answered
      throw;
    }
    lines.push_back(*std::move(line));
    if (lines.size() == chunk || !reader.ready()) write_translations(loaded, lines, a.search);
  }
  write_translations(loaded, lines, a.search);
}

}  // namespace

void add_translate(CLI::App& tool, int& status) {
  CLI::App& app = *tool.add_subcommand("translate", "Translate standard input line by line");
  const auto a = std::make_shared<TranslateArguments>();
  app.add_option("--model", a->model, "Folder or checkpoint file of a trained model")->type_name("DIR")->required();
  app.add_option("--beam", a->search.beam, "Hypotheses kept for each sentence; 1: the likeliest piece each time")
      ->type_name("N")
      ->check(whole(1, "5", 1000))
      ->capture_default_str();
  app.add_option("--length-penalty", a->search.length_penalty, "Exponent of ((5 + length) / 6); larger: longer translations")
      ->type_name("A")
      ->check(number(0, 10, "0.6"))
      ->capture_default_str();
  app.add_option("--max-length", a->search.max_length, "Most pieces of a translation; 0: twice the source's and ten more")
      ->type_name("N")
      ->check(whole(0, "100", 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-tokens", a->search.batch_tokens, "Source pieces times beam that are decoded together; on a card 20000")
      ->type_name("N")
      ->check(whole(1, "2000", 100'000'000))
      ->capture_default_str();
  app.add_option("--device", a->device, "cpu, or cuda:N where CUDA is built and a card is there")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--threads", a->plan.threads, "CPU threads; by default EVERGLOW_THREADS, else all cores")
      ->type_name("N")
      ->check(whole(1, "2", 1024));
  app.footer("echo \"forty-two\" | everglow translate --model numbers");
  app.callback([a, &app, &status] {
    if (app.count("--batch-tokens") == 0) a->search.batch_tokens = gnmt::batch_tokens_of(parse_device(a->device).kind);
    translate(*a);
    status = 0;
  });
}

}  // namespace everglow::cli
