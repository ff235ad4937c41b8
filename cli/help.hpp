// What the tool says about its arguments: the help pages and the text of a wrong command line.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

namespace everglow::cli {

/// Help pages of at most 100 columns. A sub-command's footer holds an example.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// What was wrong, what is allowed, an example, and where to read more; ends with a line feed.
std::string explain_wrong_arguments(const CLI::App& tool, const CLI::ParseError& error);

}  // namespace everglow::cli
