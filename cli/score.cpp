// everglow score: BLEU of a file of translations against a file of references.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"

#include <everglow/gnmt/bleu.hpp>
#include <everglow/gnmt/corpus.hpp>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace everglow::cli {
namespace {

struct Arguments {
  std::string hypotheses, references, tokenizer = "13a";
};

void score(const Arguments& arguments) {
  std::vector<std::string> hypotheses, references;
  for (gnmt::Pair& pair : gnmt::read_pairs(arguments.hypotheses, arguments.references)) {
    hypotheses.push_back(std::move(pair.source));
    references.push_back(std::move(pair.target));
  }
  const auto tokenizer = arguments.tokenizer == "13a" ? gnmt::BleuTokenizer::v13a : gnmt::BleuTokenizer::intl;
  const gnmt::Bleu bleu = gnmt::bleu(hypotheses, references, tokenizer);
  const double ratio =
      bleu.reference_length > 0 ? static_cast<double>(bleu.hypothesis_length) / static_cast<double>(bleu.reference_length) : 0;
  const auto& p = bleu.precisions;
  fmt::print("BLEU = {:.2f} {:.1f}/{:.1f}/{:.1f}/{:.1f} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = {})\n{}\n", bleu.score,
             p[0], p[1], p[2], p[3], bleu.brevity_penalty, ratio, bleu.hypothesis_length, bleu.reference_length,
             gnmt::bleu_signature(tokenizer));
}

}  // namespace

void add_score(CLI::App& tool, int& status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& app = *tool.add_subcommand("score", "Score translations with BLEU, equal to sacreBLEU's");
  app.footer("everglow score translations.txt references.txt --tokenize intl");
  app.add_option("hyp", arguments->hypotheses, "File of translations, one a line")->required();
  app.add_option("ref", arguments->references, "File of references, one for each translation")->required();
  app.add_option("--tokenize", arguments->tokenizer, "How lines are cut into words: 13a (mteval-v13a) or intl (by Unicode classes)")
      ->type_name("HOW")
      ->check(one_of({"13a", "intl"}))
      ->capture_default_str();
  app.callback([arguments, &status] {
    score(*arguments);
    status = 0;
  });
}

}  // namespace everglow::cli
