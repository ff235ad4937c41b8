// BLEU against values of sacreBLEU itself (bleu_oracle.inc, written by tests/oracles/bleu.py).
#include <everglow/error.hpp>
#include <everglow/gnmt/bleu.hpp>

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::gnmt {
namespace {

struct TokenizedLine {
  std::string_view line, v13a, intl;
};

struct ScoredCorpus {
  std::string_view name;
  std::vector<std::string> hypotheses, references;
  Bleu expected[2];  // 13a, intl
};

#include "bleu_oracle.inc"

TEST(bleu, lines_are_cut_as_by_sacrebleu_sanitize) {
  for (const TokenizedLine& c : tokenized_lines) {
    EXPECT_EQ(tokenize_for_bleu(c.line, BleuTokenizer::v13a), c.v13a) << "13a: " << c.line;
    EXPECT_EQ(tokenize_for_bleu(c.line, BleuTokenizer::intl), c.intl) << "intl: " << c.line;
  }
}

TEST(bleu, scores_are_sacrebleus_sanitize) {
  for (const ScoredCorpus& c : scored_corpora) {
    for (const BleuTokenizer tokenizer : {BleuTokenizer::v13a, BleuTokenizer::intl}) {
      const Bleu& expected = c.expected[static_cast<int>(tokenizer)];
      const Bleu actual = bleu(c.hypotheses, c.references, tokenizer);
      const std::string name = std::string(c.name) + (tokenizer == BleuTokenizer::v13a ? " 13a" : " intl");
      EXPECT_EQ(actual.matches, expected.matches) << name;
      EXPECT_EQ(actual.totals, expected.totals) << name;
      EXPECT_EQ(actual.hypothesis_length, expected.hypothesis_length) << name;
      EXPECT_EQ(actual.reference_length, expected.reference_length) << name;
      // The same counts in the same few operations of double; exp and log may differ in the last place, each once or four times.
      EXPECT_NEAR(actual.score, expected.score, 1e-13 * 100) << name;
      EXPECT_NEAR(actual.brevity_penalty, expected.brevity_penalty, 1e-15) << name;
      for (int i = 0; i < 4; ++i) EXPECT_NEAR(actual.precisions[i], expected.precisions[i], 1e-13) << name;
    }
  }
}

TEST(bleu, nothing_at_all_scores_zero_sanitize) {
  const Bleu none = bleu({}, {});
  EXPECT_EQ(none.score, 0);
  EXPECT_EQ(none.brevity_penalty, 1);  // as sacreBLEU: no reference is longer
}

TEST(bleu, unequal_counts_of_lines_are_an_error_sanitize) {
  const std::vector<std::string> one{"a"}, two{"a", "b"};
  try {
    bleu(one, two);
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "[bleu] expected as many hypotheses as references, got 1 and 2");
  }
}

TEST(bleu, bytes_that_are_not_utf8_stay_what_they_are_sanitize) {
  EXPECT_EQ(tokenize_for_bleu("a\xFF, b\xC3", BleuTokenizer::v13a), "a\xFF , b\xC3");
  EXPECT_EQ(tokenize_for_bleu("a\xFF, b\xC3", BleuTokenizer::intl), "a\xFF , b\xC3");
}

TEST(bleu, the_signature_names_every_choice_sanitize) {
  EXPECT_EQ(bleu_signature(BleuTokenizer::v13a), "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:everglow-" EVERGLOW_VERSION);
  EXPECT_EQ(bleu_signature(BleuTokenizer::intl),
            "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:everglow-" EVERGLOW_VERSION);
}

}  // namespace
}  // namespace everglow::gnmt
