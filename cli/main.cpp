// everglow: reads the command line and runs one sub-command. Exit status 2 for arguments that are wrong on every machine, 1 for
// what this machine, this build, a file or the run did not allow.
#include "cli/commands.hpp"
#include "cli/help.hpp"
#include "cli/waits.hpp"

#include <everglow/everglow.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace everglow::cli {
namespace {

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::system_error(errno, std::generic_category(), "standard output");
}

int run(int argc, char** argv) {
  CLI::App tool("Linear, recurrent and attention layers that say what they do, and a translator made of them.", "everglow");
  tool.formatter(help_formatter());
  tool.set_help_flag("-h,--help", "Show this help");
  tool.set_version_flag("--version", "everglow " + std::string(version()), "Show the version");
  tool.require_subcommand(1);
  tool.footer("everglow train --train pairs.tsv --out model");
  int status = 0;
  add_train(tool, status);
  add_translate(tool, status);
  add_score(tool, status);
  add_corpus(tool, status);
  add_demo(tool, status);
  add_plan(tool, status);
  add_probe(tool, status);
  add_info(tool, status);
  add_check(tool, status);
  add_bench(tool, status);
  refuse_options_as_values(tool);
  try {
    tool.parse(argc, argv);
  } catch (const CLI::Success& success) {
    status = tool.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}", explain_wrong_arguments(tool, error));
    return 2;
  }
  flush_output();
  return status;
}

}  // namespace
}  // namespace everglow::cli

int main(int argc, char** argv) {
  everglow::cli::bound_waits(argv);
  // A reader that has seen enough ends the tool without a word, as it ends any filter, even where a parent ignores the signal.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    return everglow::cli::run(argc, argv);
  } catch (const everglow::Error& error) {
    fmt::print(stderr, "everglow: {}\n", error.what());
    return error.code() == everglow::ErrorCode::invalid_argument ? 2 : 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "everglow: not enough memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "everglow: {}\n", error.what());
  }
  return 1;
}
