// Help pages and the text of a wrong command line. CLI11's own pages do not wrap and differ between its versions.
#include "cli/help.hpp"

#include "cli/wrap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace everglow::cli {
namespace {

constexpr std::size_t widest_left = 32;

using Row = std::pair<std::string, std::string>;

std::string table(const std::string& title, const std::vector<Row>& rows) {
  if (rows.empty()) return {};
  std::size_t left = 0;
  for (const Row& row : rows)
    if (row.first.size() <= widest_left) left = std::max(left, row.first.size());
  std::string out = "\n" + title + ":\n";
  for (const auto& [name, text] : rows) {
    out += name.size() <= left ? fmt::format("  {:<{}}  ", name, left) : fmt::format("  {}\n{}", name, std::string(left + 4, ' '));
    wrap(out, text, left + 4);
  }
  return out;
}

Row row_of(const CLI::Option& option) {
  std::string name = option.get_positional() ? option.get_name(true) : option.get_name(false, true);
  std::replace(name.begin(), name.end(), ',', ' ');
  if (option.get_items_expected_max() > 0 && !option.get_positional() && !option.get_type_name().empty())
    name += ' ' + option.get_type_name();
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" (default {})", option.get_default_str());
  return {name, text};
}

class Help final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const override {
    std::vector<Row> commands, operands, options;
    for (const CLI::App* command : app->get_subcommands(nullptr))
      commands.emplace_back(command->get_name(), command->get_description());
    for (const CLI::Option* option : app->get_options()) (option->get_positional() ? operands : options).push_back(row_of(*option));
    std::string usage = "usage: " + name;
    if (!commands.empty()) usage += " COMMAND";
    for (const Row& operand : operands) usage += ' ' + operand.first;
    usage += " [options]\n\n";
    wrap(usage, app->get_description(), 0);
    const std::string example = app->get_footer().empty() ? "" : "\nexample: " + app->get_footer() + "\n";
    return usage + table("commands", commands) + table("arguments", operands) + table("options", options) + example;
  }
};

std::vector<std::string> command_names(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* command : tool.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_positional())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// An option that has no value, or more than one, in our words; the library's message begins with its name.
std::string wrong_count(const CLI::App& command, const std::string& message) {
  for (const CLI::Option* option : command.get_options())
    if (message.starts_with(option->get_name() + ":")) {
      const std::vector<std::string>& given = option->results();
      const bool none = message.ends_with("missing");
      return fmt::format("{}: expected one value ({}), got {}", option->get_name(), option->get_type_name(),
                         none ? "none" : fmt::format("{}: {}", given.size(), fmt::join(given, ", ")));
    }
  return message;
}

std::string what_is_wrong(const CLI::App& tool, const CLI::App& command, const CLI::ParseError& error) {
  std::vector<std::string> surplus = command.remaining();
  // What is there and unknown says more than what is missing.
  const bool unknown =
      dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (unknown && !command.get_subcommands(nullptr).empty()) {
    const std::string given = surplus.empty() ? "none" : '"' + surplus.front() + '"';
    return fmt::format("expected a command ({}), got {}", fmt::join(command_names(command), ", "), given);
  }
  if (surplus.empty()) surplus = tool.remaining();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return wrong_count(command, error.what());
  if (!unknown || surplus.empty()) return error.what();
  if (surplus.front().starts_with('-'))
    return fmt::format("{}: no such option; expected {}", surplus.front(), fmt::join(option_names(command), ", "));
  return fmt::format("expected no further argument, got \"{}\"", surplus.front());
}

}  // namespace

void refuse_options_as_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (!option->get_positional() && option->get_items_expected_max() > 0)
      option->check(CLI::Validator(
          [](const std::string& value) {
            return value.starts_with("--") ? fmt::format("expected a value, got the option \"{}\"", value) : std::string();
          },
          ""));
  for (CLI::App* command : app.get_subcommands(nullptr)) refuse_options_as_values(*command);
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<Help>(); }

std::string explain_wrong_arguments(const CLI::App& tool, const CLI::ParseError& error) {
  const CLI::App* last = &tool;
  std::string name = tool.get_name();
  for (auto parsed = last->get_subcommands(); !parsed.empty(); parsed = last->get_subcommands()) {
    last = parsed.front();
    name += ' ' + last->get_name();
  }
  const CLI::App& command = *last;
  std::string text = fmt::format("{}: {}\n", name, what_is_wrong(tool, command, error));
  if (!command.get_footer().empty()) text += fmt::format("example: {}\n", command.get_footer());
  return text + fmt::format("{} --help shows all that is allowed\n", name);
}

}  // namespace everglow::cli
