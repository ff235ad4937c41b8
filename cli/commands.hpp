// The sub-commands of the tool, one source each. An add_... function adds its sub-command; the callback puts the exit status into
// `status` and throws everglow::Error for what it cannot do.
#pragma once

#include <CLI/CLI.hpp>

namespace everglow::cli {

void add_train(CLI::App& tool, int& status);
void add_translate(CLI::App& tool, int& status);
void add_score(CLI::App& tool, int& status);
void add_corpus(CLI::App& tool, int& status);
void add_demo(CLI::App& tool, int& status);
void add_plan(CLI::App& tool, int& status);
void add_probe(CLI::App& tool, int& status);
void add_info(CLI::App& tool, int& status);
void add_check(CLI::App& tool, int& status);
void add_bench(CLI::App& tool, int& status);

}  // namespace everglow::cli
