// everglow: reads the command line and runs one sub-command. Exit status 2 for wrong arguments, 1 for what failed later.
#include "cli/commands.hpp"

#include <everglow/everglow.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace everglow::cli {
namespace {

/// What is wrong with the first word where it is no sub-command; CLI11 would only say that one is missing.
std::string unknown_command(const CLI::App& tool, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : tool.get_subcommands(nullptr)) names.push_back(command->get_name());
  const std::string given = argc > 1 ? argv[1] : "";
  if (given.starts_with('-') || std::find(names.begin(), names.end(), given) != names.end()) return {};
  return fmt::format("expected a command ({}), got {}; for example everglow info", fmt::join(names, ", "),
                     given.empty() ? "none" : '"' + given + '"');
}

/// The sub-command that was being read, for the hint at its help.
std::string command_of(const CLI::App& tool) {
  std::string name = tool.get_name();
  for (const CLI::App* command : tool.get_subcommands()) name += ' ' + command->get_name();
  return name;
}

int run(int argc, char** argv) {
  CLI::App tool("Linear, recurrent and attention layers, and a translator made of them", "everglow");
  tool.set_version_flag("--version", std::string(version()));
  tool.require_subcommand(1);
  int status = 0;
  add_info(tool, status);
  if (const std::string what = unknown_command(tool, argc, argv); !what.empty()) {
    fmt::print(stderr, "everglow: {}\neverglow --help shows what is allowed\n", what);
    return 2;
  }
  try {
    tool.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return tool.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "{}: {}\n{} --help shows what is allowed\n", command_of(tool), e.what(), command_of(tool));
    return 2;
  }
  return status;
}

}  // namespace
}  // namespace everglow::cli

int main(int argc, char** argv) {
  try {
    return everglow::cli::run(argc, argv);
  } catch (const everglow::Error& e) {
    fmt::print(stderr, "everglow: {}\n", e.what());
    return e.code() == everglow::ErrorCode::invalid_argument ? 2 : 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "everglow: not enough memory\n");
  } catch (const std::exception& e) {
    fmt::print(stderr, "everglow: {}\n", e.what());
  }
  return 1;
}
