// What the tool says about its arguments: the help pages and the text of a wrong command line.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

namespace everglow::cli {

/// Help pages of at most 100 columns. A sub-command's footer holds an example.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// An option that is followed by another one has no value: it is named, and does not swallow the next. To be called once all
/// options are there.
void refuse_options_as_values(CLI::App& tool);

/// What was wrong, what is allowed, an example, and where to read more; ends with a line feed.
std::string explain_wrong_arguments(const CLI::App& tool, const CLI::ParseError& error);

}  // namespace everglow::cli
